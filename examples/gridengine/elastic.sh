#!/bin/bash
# A run on Grid Engine: one agent on each node of a parallel environment with allocation_rule 1 and control_slaves TRUE.
# Submit it with: qsub -pe ENVIRONMENT NODES elastic.sh
#$ -N elastic
#$ -cwd
#$ -j y
#$ -l h_rt=24:00:00
#$ -t 1-10 -tc 1

# Up to ten tasks, one after the other, continue the same run. Once it has ended, the other tasks end at once.
limit=${LIMIT:-86400}    # seconds: h_rt above
warning=${WARNING:-120}  # seconds before the limit at which workers are asked to save and to stop

options=(
    --nnodes "${MIN_NODES:-1}:$NHOSTS"
    --rdzv-id "job-$JOB_ID"
    --rdzv-endpoint "$PWD/runs"
    --warning $((warning - 20))
    --max-restarts 3
)
# Grid Engine warns only some nodes of a job. So each agent has a timer of its own.
command=(
    timeout --foreground --preserve-status --signal USR2 $((limit - warning))
    "${PYTHON:-python}" -m hpcelastic agent "${options[@]}" "${SCRIPT:-train.py}"
)
agents=()
for node in $(cut -d ' ' -f 1 "$PE_HOSTFILE"); do
    qrsh -inherit -nostdin -V "$node" "cd $(printf %q "$PWD") && exec $(printf '%q ' "${command[@]}")" &
    agents+=($!)
done

status=1  # 0 if an agent has ended with the success of the run
for agent in "${agents[@]}"; do
    wait "$agent" && status=0
done
exit $status
