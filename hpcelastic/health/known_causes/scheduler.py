"""Failures that SLURM and other batch systems report, and clouds."""

from hpcelastic.health.incidents import IncidentKind
from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_SLURM = "SLURM, srun and slurmstepd"

CAUSES = (
    KnownCause(
        "slurm-time-limit",
        r"DUE TO TIME LIMIT|this job is timed-out|PBS: job killed: walltime \d+ exceeded limit|\bTERM_RUNLIMIT\b|"
        r"exceeded (?:hard|soft) wallclock time|exceeds job (?:hard|soft) limit \"[hs]_rt\"|"
        r"type=timeout[^\n]*resource allocation expired|"
        r"active (?:on the node )?longer than (?:the )?specified deadline|TrainJob exceeded its active deadline|"
        r"\bMaxRuntimeExceeded\b|\bMaxWaitTimeExceeded\b|Job exceeded resource walltime|"
        r"PBS: job killed: walltime \d+ exceeded|\bTERM_DEADLINE\b|exceeded MaxRuntimeInSeconds",
        "SLURM has ended the job at its time limit.",
        Blame.SCHEDULER,
        Certainty.CERTAIN,
        "set run.total_time, so that the job requeues itself",
        _SLURM,
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-preemption",
        r"DUE TO PREEMPTION|this job is preempted|node was preempted|instance reclaim|"
        r"[Tt]ermination is imminent|[Ss]pot (?:instance )?(?:interruption|termination)",
        "SLURM has preempted the job.",
        Blame.SCHEDULER,
        Certainty.CERTAIN,
        "nothing: the job is requeued, unless slurm.requeue is false",
        _SLURM,
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "preemption",
        r"\bjob (?:was |is being )?preempted\b|\bPreemption notice\b|\bpod-termination\b|\bspot interruption\b|"
        r"Preempt(?:ed|ing) (?:in order to admit critical pod|to accommodate a)|"
        r"Preempted by (?:a )?(?:pod )?\S+ on node \S+|\bPreemptionByScheduler\b|\bEvictionByEvictionAPI\b|"
        r"in response to imminent node shutdown|as the node is shutting down|Pod is evicted, because of|"
        r"Evicted (?:by preemption|to accommodate a|due to preemption)|\"EventType\": ?\"(?:Preempt|Terminate)\"|"
        r"compute\.instances\.preempted|[Ii]nstance (?:was|has been|is being) preempted|"
        r"\binstance-terminated-(?:by-price|no-capacity|by-schedule)\b|\"action\": ?\"(?:terminate|stop|"
        r"hibernate)\", ?\"time\"|\bTERM_(?:PREEMPT|RC_RECLAIM)\b|\bworkerpool\d+-\d+ was preempted|"
        r"\bSpotInterruption\b",
        "The site has preempted the job.",
        Blame.SCHEDULER,
        Certainty.LIKELY,
        "continue the run with --resume",
        "Kubernetes, pod termination; Amazon EC2, spot interruptions",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-node-failure",
        r"DUE TO NODE FAILURE|\bNODE_FAIL\b|error: Node failure on",
        "SLURM reports that a node has failed.",
        Blame.NODE,
        Certainty.CERTAIN,
        "nothing: the others continue with --no-kill; see sinfo -R for the reason",
        _SLURM,
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-step-ended",
        r"srun: error: [^\n]*task[^\n]*: (?:Exited with exit code [1-9]|Killed|Aborted)[\s\S]*CANCELLED AT \S+ \*|"
        r"DUE TO TASK FAILURE|Job step aborted: Waiting up to \d+ seconds|First task exited \d+s ago|"
        r"Timed out waiting for job step to complete|srun: (?:tasks? [\d,-]+|\S+ tasks? [\d,-]+): exited abnormally|"
        r"FAILED \(non-zero exit code or other failure mode\)",
        "SLURM has ended the step, because a task on another node has failed.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the first failure of another rank: hpcelastic status",
        _SLURM,
    ),
    KnownCause(
        "slurm-launch",
        r"(?:Task launch for StepId\S* failed|Application launch failed)[^\n]*(?:timed out|Communication|"
        r"connection)|timeout waiting for task launch, started \d+ of \d+|"
        r"slurm_receive_msgs: \[\[\S+\]:\d+\] failed: (?:Socket timed out|Communication connection)",
        "SLURM could not reach the nodes of the job in time.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the network between the nodes; more than a thousand nodes may need a greater TCPTimeout in slurm.conf",
        _SLURM,
    ),
    KnownCause(
        "slurm-requeue",
        r"DUE TO JOB REQUEUE",
        "SLURM has requeued the job.",
        Blame.SCHEDULER,
        Certainty.CERTAIN,
        "nothing: the job starts again",
        _SLURM,
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-cancelled",
        r"\bJOB \S+ ON \S+ CANCELLED AT|\bTERM_(?:FORCE_)?OWNER\b|via condor_rm \(by user|"
        r"\b[Jj]ob to be deleted at request of|\S+ has deleted job \d+|type=cancel severity=0",
        "The job was cancelled.",
        Blame.USER,
        Certainty.LIKELY,
        "continue it with --resume",
        _SLURM,
    ),
    KnownCause(
        "slurm-step-cancelled",
        r"\bSTEP \S+ ON \S+ CANCELLED AT",
        "The step was ended: one of its tasks has failed, or somebody has cancelled it.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "look for the first failure of another rank: hpcelastic status",
        _SLURM,
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "slurm-prolog",
        r"\bProlog (?:failure|failed|error|hook error)\b|\bprolog failed\b|TaskProlog failed status|"
        r"--task-prolog failed status|launch failed requeued held|\bJobLaunchFailure\b",
        "SLURM could not prepare the node for the job.",
        Blame.NODE,
        Certainty.LIKELY,
        "drain the node, and report it to the administrators: the log of slurmd has the reason",
        "SLURM, Prolog and Epilog Guide",
        IncidentKind.SUSPECT,
        Weight.DETAIL,
    ),
    KnownCause(
        "slurm-container",
        r"\bcontainer_[gp]_join\b[^\n]*failed",
        "SLURM could not let a task join the container of its job.",
        Blame.NODE,
        Certainty.LIKELY,
        "report it to the administrators: the job_container plug-in, and its directory on the node",
        "SLURM, job_container.conf",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-credential",
        r"Invalid job credential",
        "Nodes do not accept the credentials that SLURM's controller has signed.",
        Blame.SCHEDULER,
        Certainty.LIKELY,
        "report it to the administrators: the keys of SLURM or munge differ between the nodes and the controller",
        "SLURM, Troubleshooting Guide",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "munge",
        r"Munge (?:de|en)code failed|(?:Expired|Rewound|Invalid) (?:job )?credential|[Cc]redential expired|"
        r"Protocol authentication error",
        "The authentication of SLURM does not work on the node: munge is not running, or the clock is wrong.",
        Blame.NODE,
        Certainty.LIKELY,
        "check munge and the clock of the node",
        "MUNGE, munge(7)",
        IncidentKind.SUSPECT,
        Weight.DETAIL,
    ),
    KnownCause(
        "slurm-client",
        r"resolve_ctls_from_dns_srv|Could not establish a configuration source",
        "The node has no configuration of SLURM.",
        Blame.NODE,
        Certainty.LIKELY,
        "check slurm.conf or slurmd's address on the node",
        _SLURM,
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "slurm-configuration",
        r"Requested node configuration is not available|Memory specification can not be satisfied|"
        r"Unable to create step for job|More processors requested than|Invalid generic resource|"
        r"Requested nodes are busy|not enough slots available|Invalid (?:account|qos|partition)|"
        r"User's group not permitted to use this partition|Job violates accounting/QOS policy|"
        r"Requested time limit is invalid|(?:Node|CPU|Task) count specification invalid|"
        r"Task distribution specification invalid|Invalid (?:feature|license|wckey|GRES|"
        r"Trackable RESource \(TRES\)) specification|Invalid node name specified|"
        r"Invalid numeric value \"[^\"\n]*\" for -|(?:srun|sbatch|salloc): (?:error|"
        r"fatal): [^\n]*are mutually exclusive|Only allocated \d+ nodes? asked for \d+|invalid number of (?:nodes|"
        r"tasks|cpus per task) \(-|Memory required by task is not available|Access denied to requested reservation|"
        r"Requested reservation is invalid|No partition specified or system default partition|"
        r"Time limit specification required, but not provided|Cannot request more threads per core than|"
        r"No command given to execute|(?:srun|sbatch|salloc): (?:unrecognized option|invalid option --)|"
        r"Job violates queue and/or server resource limits",
        "SLURM cannot give the requested resources.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "compare the keys of slurm with sinfo and scontrol show partition",
        _SLURM,
    ),
    KnownCause(
        "slurm-job-expired",
        r"Slurm job \d+ has expired|Unable to confirm allocation for job \d+: Invalid job id",
        "A step should start in a job that SLURM does not know any more; the environment has the number of another "
        "job.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "unset SLURM_JOB_ID and the other variables of SLURM before srun or sbatch, or start it within its job",
        "SLURM, src/srun/allocate.c",
    ),
    KnownCause(
        "slurm-closed",
        r"Required (?:node|partition) not available|Partition in DOWN state|System submissions disabled|"
        r"Requested partition configuration not available now|due to maintenance reservation|"
        r"Requested reservation not usable now",
        "The nodes or the partition that the job asks for are closed or down.",
        Blame.SCHEDULER,
        Certainty.LIKELY,
        "look at sinfo and scontrol show reservation, and choose another partition or wait",
        "SLURM, src/common/slurm_errno.c",
    ),
    KnownCause(
        "slurm-controller",
        r"Unable to contact slurm controller|Batch job submission failed|Unable to confirm allocation|(?:squeue|"
        r"scontrol|sacct|sinfo|scancel|sbatch|salloc): error: [^\n]*Socket timed out on send/recv|"
        r"Rate limit exceeded, please retry|Slurm backup controller in standby mode|slurm_load_\w+ error: ",
        "SLURM's controller does not answer, or has refused the request.",
        Blame.SCHEDULER,
        Certainty.LIKELY,
        "see the rest of the message; scontrol ping shows whether the controller answers",
        _SLURM,
    ),
    KnownCause(
        "lsf-limit",
        r"\bTERM_(?:THREAD|PROCESS|CPU)LIMIT\b|\bTERM_SWAP\b",
        "LSF has ended the job at a limit of its threads, processes, processor time or swap.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "request a higher limit, or use fewer processes",
        "IBM Spectrum LSF, bhist(1)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-unkillable",
        r"STEPD TERMINATED ON \S+ AT \S+ DUE TO JOB NOT (?:ENDING WITH SIGNALS|RUNNING)|\bKill task failed\b",
        "Processes of the job did not end after SIGKILL: they hang in the kernel of the node.",
        Blame.NODE,
        Certainty.LIKELY,
        "drain and reboot the node; its kernel's log shows whether a filesystem or a driver of the GPU hangs",
        "SLURM, slurmstepd/mgr.c and slurm.conf(5): UnkillableStepTimeout",
    ),
    KnownCause(
        "slurm-step-lost",
        r"Aborting, (?:io error and missing step|step missing and io error|can not test connection)[^\n]*node \d+|"
        r"io error with slurmstepd on node \d+|Nodes \S+ are still not ready|"
        r"Something is wrong with the boot of the nodes",
        "SLURM has lost the part of a step on a node, or the node did not start.",
        Blame.NODE,
        Certainty.LIKELY,
        "look whether the node was rebooted or its slurmd has ended (sinfo -R, journalctl -u slurmd)",
        "SLURM, src/api/step_io.c and step_launch.c, src/srun/allocate.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-job-ending",
        r"Job/step already completing or completed|No running or pending steps in the job|"
        r"Unable to create step for job \d+: (?:Job has already finished|Invalid job id specified)",
        "The job was ending already when a step of it should start.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the reason of the end: the first failure of another rank, the time limit, or a cancel (sacct -j)",
        "SLURM, src/common/slurm_errno.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "scheduler-node-lost",
        r"received SISTER_EOF|attempting to communicate with sister MOM|requested job (?:die|"
        r"terminate)[^\n]*code \d+|\bnode EOF \d+ \(|lost contact with (?:job )?shell|type=node-failure|"
        r"Job reconnection failed|Can not reconnect to \S+, rescheduling job|compute\.instances\.hostError|"
        r"Remote JSM server is not responding|\bTERM_RMS\b|\bDeletionByTaintManager\b|"
        r"deleting due to NoExecute taint|\bNodeNotReady\b|\bNodeLost\b|PodGC: node no longer exists|"
        r"node had condition: \[|PLEG is not healthy",
        "The scheduler has lost a node of the job.",
        Blame.NODE,
        Certainty.LIKELY,
        "look whether the node was rebooted or has lost its network (pbsnodes, flux resource status, kubectl "
        "describe node)",
        "OpenPBS and Torque, mom_main.c; Flux, job-exec.c; HTCondor, condor_event.cpp; Kubernetes, node "
        "conditions; Google Compute Engine, host errors",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-cgroup",
        r"(?:unable to|could not|couldn't) create (?:\w+ )?cgroup (?!namespace)|cgroup namespace '\w+' not mounted|"
        r"one of task_p_pre_setuid functions returned error|cannot initialize cgroup directory for stepds|"
        r"cgroup mountpoint \S+ is not mounted|mkdir /sys/fs/cgroup/\S+: (?:cannot allocate memory|"
        r"no space left on device|read-only file system)",
        "The node cannot make a control group for the job.",
        Blame.NODE,
        Certainty.LIKELY,
        "drain and reboot the node: its kernel has no control groups left, or they are not mounted",
        "SLURM, src/plugins/cgroup; Linux, cgroups(7)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "site-killed",
        r"\bTERM_(?:FORCE_)?ADMIN\b|killed by root or LSF administrator|\bTERM_(?:WINDOW|LOAD|REQUEUE_(?:OWNER|"
        r"ADMIN|RC)|ZOMBIE|BUCKET_KILL|REMOVE_HUNG_JOB|SWAP_OUT)\b|PERIODIC_(?:HOLD|REMOVE)[^\n]*evaluated to TRUE|"
        r"Aborted by PBS Server",
        "The site or its scheduler has ended the job.",
        Blame.SCHEDULER,
        Certainty.LIKELY,
        "look at the reason that the scheduler gives (bhist -l, condor_q -hold, tracejob), and ask the administrators",
        "IBM Spectrum LSF, bhist(1); HTCondor, policy expressions; OpenPBS, pbs_messages.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "processor-limit",
        r"PBS: job killed: (?:ncpus|p?cput|mppe|mppssp)\b|Job exceeded resource (?:ncpus|cput)|exceeds job (?:hard|"
        r"soft) limit \"[hs]_cpu\"|\bSIGXCPU\b|\bCPU time limit exceeded\b|\bCputime limit exceeded\b",
        "The processes have used more processors or more processor time than they may.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "request more processors, set OMP_NUM_THREADS, and do not run on a login node (ulimit -t)",
        "OpenPBS, mom_main.c; Grid Engine, msg_execd.h; Linux, setrlimit(2): RLIMIT_CPU",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-version",
        r"Header lengths are longer than data received|Incompatible versions of client and server code|"
        r"Zero Bytes were transmitted or received|Invalid Protocol Version \d+ from uid|Incompatible plugin version",
        "Programs of SLURM do not understand each other: they have different versions, configurations or keys.",
        Blame.SCHEDULER,
        Certainty.LIKELY,
        "compare the versions and keys on both nodes (srun --version, scontrol show config); do not use SLURM from "
        "a container image",
        "SLURM, src/common/slurm_errno.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "slurm-revoked",
        r"Job allocation \d+ has been revoked",
        "SLURM has taken the allocation of the job back: at its time limit, for another job, or because it was "
        "cancelled.",
        Blame.SCHEDULER,
        Certainty.LIKELY,
        "see the state and the reason of the job (sacct -j), and continue the run with --resume",
        "SLURM, src/srun/allocate.c and src/salloc/salloc.c",
    ),
    KnownCause(
        "slurm-address",
        r"can't find address for host \S+,? check slurm\.conf|Can't find an address, check slurm\.conf",
        "SLURM does not know the address of a node of the job.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check that every node resolves the names of the others, and slurm.conf on the node",
        "SLURM, src/common/slurm_errno.c and forward.c",
    ),
    KnownCause(
        "cloud-capacity",
        r"\bInsufficientInstanceCapacity\b|\bZONE_RESOURCE_POOL_EXHAUSTED\w*|\bCapacityError: |"
        r"Unable to provision requested ML compute capacity|\b(?:Overconstrained)?AllocationFailed\b|"
        r"\bSkuNotAvailable\b|do(?:es)? not have (?:sufficient|enough) \S+ capacity|"
        r"does not have enough resources available to fulfill",
        "The cloud has no machines of this kind at this time.",
        Blame.SCHEDULER,
        Certainty.LIKELY,
        "try again later, in another zone, or with another kind of machine",
        "Amazon EC2 and SageMaker, error codes; Google Compute Engine, resource availability; Azure, allocation "
        "failures",
    ),
)
