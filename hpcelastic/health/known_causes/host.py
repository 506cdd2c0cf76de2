"""Failures of memory and processes of a node, and of the containers on it."""

from hpcelastic.health.incidents import IncidentKind
from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_ERRNO = "Linux, errno(3)"
_SIGNAL = "Linux, signal(7)"
_LOADER = "torch.utils.data.DataLoader"

_SMALL_SHARED_MEMORY = (
    "make /dev/shm larger (in a container: --shm-size), remove old files from it, or use fewer processes of a loader"
)

CAUSES = (
    KnownCause(
        "memory-of-node",
        r"constraint=CONSTRAINT_NONE|\bglobal_oom\b",
        "The memory of the node was used up, and the kernel has killed a process.",
        Blame.NODE,
        Certainty.LIKELY,
        "look in the kernel's log for the process that used most memory; request whole nodes, or a limit of memory",
        "Linux, Documentation/mm: out of memory",
        IncidentKind.SUSPECT,
        Weight.DETAIL,
    ),
    KnownCause(
        "semaphores",
        r"SemLock[^\n]*\n(?:[^\n]*\n)?\W*(?:\[rank\d+\]: *)?(?:OSError|FileNotFoundError)",
        "The shared memory of the node is full or missing, so no semaphore could be made.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        _SMALL_SHARED_MEMORY,
        "Python, multiprocessing.synchronize; Linux, sem_overview(7)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "memory-used-up",
        r"CPU Virtual Memory:[^\n]*percent = (?:8[5-9]|9\d|100)[\s\S]*return code = -9\b|"
        r"Loading checkpoint shards[\s\S]*exit(?: ?code:?|s with return code =) -9\b",
        "The process was killed when the memory of the host was nearly used up.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "request more memory (slurm.memory), load the model on fewer ranks at once, or offload less",
        "DeepSpeed, see_memory_usage; Transformers, from_pretrained",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "memory-limit",
        r"because of a lack of memory|oom[-_ ]kill(?!er)|invoked oom-killer|Out of memory: Killed process|"
        r"Exceeded (?:job|step) memory limit|PBS: job killed: mem \S+ exceeded limit|\bTERM_MEMLIMIT\b|"
        r"enforced h_(?:vmem|rss) limit|due to the node running low on memory|Worker exceeded \d+% memory budget|"
        r"killed due to memory pressure \(OOM\)|task\S* [\d,-]+: Out Of Memory|"
        r"exceeded (?:virtual )?memory limit \(\d+ > \d+\)|out-of-memory handler|\bOOMKilled\b|"
        r"Out of memory: Kill process \d+|oom_reaper: reaped process|systemd-oomd killed \d+|"
        r"Killed \S+ due to memory (?:pressure for|used \()|has been killed by the OOM killer|"
        r"OOM killer terminated this process|low memory! at or below SIG\w+ limits|PBS: job killed: p?vmem\b|"
        r"Job exceeded resource v?mem\b|\bp?v?mem job total \d+ \S+ exceeded limit|exceeds job (?:hard|"
        r"soft) limit \"[hs]_(?:vmem|rss|data)\"|gone over (?:cgroup )?memory limit of \d+|"
        r"memory usage exceeded request_memory|killed due to the node running low on memory|"
        r"ran out-of-memory and exited|use an instance type with more memory",
        "The kernel has killed a process, because the memory of the job or of the node was used up.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "request more memory (slurm.memory), or use fewer processes of data loaders and smaller caches",
        "Linux, cgroups: memory.oom; SLURM, OOM",
    ),
    KnownCause(
        "memory-allocation",
        r"\bMemoryError\b|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough) (?:allocate )?memory|"
        r"std::bad_alloc|memory allocation of \d+ bytes failed",
        "A process could not allocate host memory.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "request more memory (slurm.memory), or use fewer processes of data loaders and smaller caches",
        _ERRNO,
    ),
    KnownCause(
        "shared-memory",
        r"insufficient shared memory \(shm\)|unable to (?:open|mmap|write to|allocate) shared memory|"
        r"No space left on device: '?/dev/shm|Error while (?:creating|attaching to) shared memory segment|"
        r"NCCL WARN [^\n]*/dev/shm/nccl|please check shared memory limits by 'ipcs -l'|"
        r"Please check that /dev/shm or the directory you specified has more|"
        r"not enough space for \S+ \(the shared-memory backing|\bObjectStoreFullError\b|"
        r"not enough space for /dev/shm|system call failed during shared memory initialization",
        "The shared memory of the node or the container is full.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        _SMALL_SHARED_MEMORY,
        f"{_LOADER}; NVIDIA, NCCL: troubleshooting",
    ),
    KnownCause(
        "loader-bus-error",
        r"DataLoader worker .*killed by signal: Bus error",
        "A process of a data loader had too little shared memory.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        _SMALL_SHARED_MEMORY,
        _LOADER,
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "loader-terminated",
        r"DataLoader worker .*killed by signal: (?:Terminated|Hangup)",
        "A process of a data loader was stopped from outside.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "find out what sent the signal: SLURM, the end of a session, or a person",
        _LOADER,
    ),
    KnownCause(
        "storage-limit",
        r"ephemeral(?:-| local )storage usage exceeds|low on resource: (?:memory|ephemeral-storage)|"
        r"EmptyDir volume \S+ exceeds the limit|exceeded its local ephemeral storage limit",
        "The container has used more memory or local storage than it may.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "request more memory or ephemeral storage; write to a shared filesystem",
        "Kubernetes, local ephemeral storage",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "soft-lockup",
        r"soft lockup - CPU|rcu_sched detected stalls|hard LOCKUP on cpu|"
        r"rcu_\w+ (?:self-)?detected (?:expedited )?stalls?\b",
        "A processor of the node did not answer for a long time.",
        Blame.NODE,
        Certainty.LIKELY,
        "drain the node, and look at its kernel's log",
        "Linux, softlockup detector",
        IncidentKind.SUSPECT,
        Weight.DETAIL,
    ),
    KnownCause(
        "loader-ended",
        r"background workers are no longer alive",
        "A process that prepares data has ended.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "look for its error above in the log, and for a lack of memory",
        "batchgenerators",
    ),
    KnownCause(
        "loader-killed",
        r"DataLoader worker .*(?:killed by signal|exited unexpectedly)|Pin memory thread exited unexpectedly",
        "A process of a data loader has ended.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "look for its error above in the log, and for a lack of memory; num_workers=0 shows errors of the data set",
        _LOADER,
    ),
    KnownCause(
        "loader-timeout",
        r"DataLoader timed out after",
        "A process of a data loader has not delivered a batch in time.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "check the speed of the filesystem with the data; a greater timeout= of the DataLoader",
        _LOADER,
    ),
    KnownCause(
        "open-files-node",
        r"Too many open files in system|\bENFILE\b|file-max limit \d+ reached",
        "All processes of the node together have more open files than it permits.",
        Blame.NODE,
        Certainty.CERTAIN,
        "look for the process with most open files (lsof), and raise fs.file-max on the node",
        "Linux, open(2): ENFILE",
    ),
    KnownCause(
        "open-files",
        r"Too many open files|\bEMFILE\b|received 0 items of ancdata",
        "A process has more open files than its limit.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "raise the limit (ulimit -n), or torch.multiprocessing.set_sharing_strategy('file_system')",
        _ERRNO,
    ),
    KnownCause(
        "openblas-threads",
        r"blas_thread_init: pthread_create failed(?![^\n]*Operation not permitted)",
        "The user or the job has more threads than its limit, and OpenBLAS has interrupted the process.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "set OPENBLAS_NUM_THREADS, or raise the limit (ulimit -u)",
        "OpenBLAS, blas_server.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "hdf5-no-locks",
        r"file locking disabled on this file system",
        "The filesystem does not offer locks of files.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "put the file on another filesystem, or turn off the locks (HDF5_USE_FILE_LOCKING=FALSE)",
        "HDF5, H5FDsec2.c",
    ),
    KnownCause(
        "processes",
        r"can't start new thread|pthread_create failed|[Tt]hread creation failed|"
        r"fork: (?:retry: )?Resource temporarily unavailable|BlockingIOError: \[Errno 11\](?![^\n]*lock file)|"
        r"OMP: (?:Error #34|System error #11)|what\(\): +Resource temporarily unavailable|ThreadPoolBuildError|"
        r"failed to create new OS thread|fork rejected by pids controller|unable to create (?:new )?native thread|"
        r"fork/exec [^\n]*: resource temporarily unavailable|fork: (?:retry: )?No child processes|"
        r"OSError: \[Errno 11\] Resource temporarily unavailable",
        "The user or the job has more processes and threads than its limit.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "raise the limit (ulimit -u), set OMP_NUM_THREADS, or use fewer processes of data loaders",
        "Linux, fork(2)",
    ),
    KnownCause(
        "locked-memory",
        r"ibv_(?:create_cq|create_qp|reg_mr\w*|alloc_pd)\b[^\n]*Cannot allocate memory|\bRLIMIT_MEMLOCK\b",
        "The network adapter needs more locked memory than the node permits.",
        Blame.NODE,
        Certainty.CERTAIN,
        "set the limit of locked memory to unlimited on the node, and let SLURM not pass on that of the login node "
        "(PropagateResourceLimitsExcept=MEMLOCK)",
        "rdma-core, ibv_reg_mr(3); NVIDIA, NCCL: troubleshooting",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "permission",
        r"Permission denied|\bEACCES\b|Operation not permitted",
        "The user may not do this with a file or a device.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "check owner and mode of the path that the message names",
        _ERRNO,
    ),
    KnownCause(
        "bus-error",
        r"\bBus error\b|\bSIGBUS\b|exit(?:ed with )?(?: ?code:?)? -7\b",
        "A process has accessed memory that could not be read: a device, a truncated file, or full shared memory.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "check the size of /dev/shm (in a container: --shm-size), then the disk and the kernel's log of the node",
        _SIGNAL,
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "memory-hardware",
        r"hardware memory corruption|EDAC [^\n]*\bUE\b|Machine [Cc]heck [^\n]*[Uu]ncorrect",
        "The memory of the node has an uncorrectable error.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain the node, and have the module replaced",
        "Linux, EDAC and hwpoison",
        IncidentKind.HARDWARE,
        Weight.DETAIL,
    ),
    KnownCause(
        "illegal-instruction",
        r"\bSIGILL\b|Illegal instruction(?! was encountered)|CPU does not support x86-64-v\d|"
        r"CPU ISA level is lower than required|NumPy was built with baseline optimizations|"
        r"was compiled to use \S+ instructions, but these aren't available|"
        r"operating system and the processor support Intel|\btrap invalid opcode\b",
        "A library was built for another processor.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "install builds for the oldest processor of the cluster, or request nodes of one kind (slurm.options)",
        _SIGNAL,
    ),
    KnownCause(
        "heap-corruption",
        r"double free or corruption|free\(\): invalid|malloc\(\): |corrupted size vs|stack smashing detected|"
        r"munmap_chunk\(\): invalid|realloc\(\): invalid|corrupted double-linked list|free\(\): (?:double free|"
        r"corrupted|unaligned|too many|chunks)|buffer overflow detected|sysmalloc: Assertion|"
        r"malloc\.c:\d+: [^\n]*Assertion",
        "A library has damaged the memory of the process.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "check that the builds of the libraries fit each other; run with MALLOC_CHECK_=3",
        "glibc, mallopt(3)",
    ),
    KnownCause(
        "segmentation-fault",
        r"killed by SIGSEGV|Segmentation fault|Caught signal 11\b|\bsegfault at [0-9a-f]+ ip\b|"
        r"traps: \S+ general protection(?: fault)? ip:",
        "A process has accessed invalid memory.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "look at the stacks above in the log (faulthandler); if it happens on one node only, drain the node",
        _SIGNAL,
    ),
    KnownCause(
        "abort",
        r"(?<!\()\bSIGABRT\b|terminate called after throwing|Fatal Python error",
        "A library has ended the process because of an error.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "read the error above in the log",
        _SIGNAL,
        weight=Weight.VAGUE,
    ),
)
