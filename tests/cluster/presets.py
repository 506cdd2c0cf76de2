"""Settings of sites, to be passed as `extra_conf`. Join the lines of several settings with a newline. Pure.

Time limits: the controller checks them 30 s after its start and every 30 s afterwards. No setting changes this (seen
with 22.05; `scontrol reconfigure` and OverTimeLimit=0 do not). So `-t1` ends a job after 60 to 90 s. An operator may
set a running job's EndTime, and so may a test: `SlurmCluster.limit`.
"""

from __future__ import annotations

from tests.cluster.slurm_conf import SCHEDULING

QUICK = "KillWait=2"
"""A job that does not end at SIGTERM is killed earlier. `SlurmdTimeout` is not changed: with 3 s, 24.11 calls a node
down whose slurmd gets no processor for that long on a busy machine, and requeues its jobs."""

PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=graceful Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=cancelled Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=20
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
"""A job in `high` takes the nodes of jobs in `low` without a warning. It takes those of jobs in `graceful` and
`cancelled` 20 s after SLURM's warning. Jobs in `low` and `graceful` are requeued, and those in `cancelled` end."""

USER_SIGNAL = "SlurmctldParameters=preempt_send_user_signal"
"""The warning before a preemption is the job's `--signal`, not SIGTERM."""

EXPANSION = f"SchedulerParameters={SCHEDULING},permit_job_expansion"
"""Jobs may take the nodes of another job of their user."""
