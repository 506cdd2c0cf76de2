"""Failures of collectives, stores and networks."""

from hpcelastic.health.incidents import IncidentKind
from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_NCCL = "NVIDIA, NCCL: troubleshooting, and torch's ProcessGroupNCCL"
_GLOO = "gloo, transport/tcp"
_STORE = "torch, TCPStore"
_ELSEWHERE = "look for the first failure of another rank: hpcelastic status"

CAUSES = (
    KnownCause(
        "collective-mismatch",
        r"Detected mismatch between collectives on ranks|collective.*shape mismatch across ranks|"
        r"collective mismatch error, local size|"
        r"message truncated : receiving \d+ bytes instead of(?![\s\S]*Connection reset)",
        "Ranks have called different collectives, or the same one with different shapes.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "all ranks must call the same collectives in the same order; TORCH_DISTRIBUTED_DEBUG=DETAIL names them",
        "torch.distributed, TORCH_DISTRIBUTED_DEBUG",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "preparation",
        r"\b(?:zero_first|main_process_first|rank_zero_first)\b[\s\S]*(?:wait timeout after|operation timeout)|"
        r"Running tokenizer on[^\n]*collective operation timeout",
        "Ranks waited for one rank that prepares data, longer than the time-out of a collective.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "prepare the data before the job, or raise the time-out: init_process_group(timeout=...), ddp_timeout",
        "torch.distributed.init_process_group; Transformers, main_process_first",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "ddp-unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "Some parameters had no gradient in a step.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use all parameters in the loss, or DistributedDataParallel(find_unused_parameters=True)",
        "torch, DistributedDataParallel",
    ),
    KnownCause(
        "nccl-duplicate-gpu",
        r"Duplicate GPU detected",
        "Two ranks use the same GPU.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "call torch.cuda.set_device(LOCAL_RANK) before the first collective",
        _NCCL,
    ),
    KnownCause(
        "nccl-version",
        r"Mismatched NCCL version detected",
        "Nodes have different versions of NCCL.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use the same environment on all nodes",
        _NCCL,
    ),
    KnownCause(
        "nccl-no-interface",
        r"no socket interface found|Bootstrap : no socket interface|"
        r"NET/Socket : 0 interfaces found|neither AF_INET\(2\) nor AF_INET6",
        "NCCL found no network interface.",
        Blame.NETWORK,
        Certainty.CERTAIN,
        "set environment.NCCL_SOCKET_IFNAME to the name of the interface",
        _NCCL,
    ),
    KnownCause(
        "infiniband-adapter",
        r"local catastrophic error|\bIBV_EVENT_DEVICE_FATAL\b",
        "An InfiniBand adapter of the node has failed.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain the node",
        "rdma-core, ibv_get_async_event(3)",
        IncidentKind.HARDWARE,
        Weight.DETAIL,
    ),
    KnownCause(
        "nccl-connect",
        r"socketStartConnect: Connect to|socketPollConnect|socketProgress[^\n]*(?:unreachable|timed out)|"
        r"NCCL WARN Connect to (?:127|172\.(?:1[6-9]|2\d|3[01]))\.\S+ failed|"
        r"NCCL WARN Connect to \S+ failed : (?!Connection refused)",
        "NCCL could not connect to another node.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "set environment.NCCL_SOCKET_IFNAME to an interface that all nodes reach: hpcelastic doctor",
        _NCCL,
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "infiniband-driver",
        r"\bibv_\w*query_device\b[^\n]*(?:returned \d+|failed)",
        "The driver of an InfiniBand adapter does not work on the node.",
        Blame.NODE,
        Certainty.LIKELY,
        "check the driver and its kernel modules on the node (ibv_devinfo), and reboot it",
        "rdma-core, ibv_query_device(3)",
        IncidentKind.SUSPECT,
        Weight.DETAIL,
    ),
    KnownCause(
        "gpu-direct",
        r"Got completion [^\n]*(?:status|error)[ =]*4\b|Local protection on mlx5",
        "A network adapter could not access memory of a process or a GPU.",
        Blame.NODE,
        Certainty.LIKELY,
        "turn off PCI access control (ACS) in the firmware of the node, and check nvidia-peermem; "
        "NCCL_NET_GDR_LEVEL=LOC avoids it",
        "NVIDIA, NCCL: troubleshooting; rdma-core, ibv_poll_cq(3)",
        IncidentKind.SUSPECT,
        Weight.DETAIL,
    ),
    KnownCause(
        "infiniband",
        r"(?:ibv_\w+|wrap_ibv_\w+).*failed|Got completion .*(?:status|error)[ =]*12\b|"
        r"[Tt]ransport retry count(?:er)? exceeded|Got async event ?: ?[^\n]*(?:error|down)\b",
        "An operation on InfiniBand has failed.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the ports and cables of the nodes (ibstat, perfquery) and the memory limit (ulimit -l)",
        "rdma-core, ibverbs; NVIDIA, NCCL: troubleshooting",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "efa-address",
        r"NET/OFI (?:Unable to insert remote address|Request [^\n]*UNDELIVERABLE)",
        "The network adapter cannot reach another node.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "let the security group of the nodes permit all traffic within itself",
        "Amazon EC2, Elastic Fabric Adapter",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "libfabric",
        r"\bOFI\b.*(?:failed|error)|\bfi_\w+\b.*failed|libfabric.*error",
        "An operation of libfabric has failed.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the fabric of the nodes (fi_info), and the plug-in of NCCL",
        "libfabric",
    ),
    KnownCause(
        "ucx",
        r"\bUCX\s+ERROR\b",
        "An operation of UCX has failed.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the fabric of the nodes (ucx_info -d)",
        "OpenUCX",
    ),
    KnownCause(
        "network-unreachable",
        r"No route to host|Network is unreachable",
        "Another node cannot be reached.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check interfaces (network.interface, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) and firewalls: hpcelastic doctor",
        "Linux, connect(2)",
    ),
    KnownCause(
        "host-name",
        r"Temporary failure in name resolution|Name or service not known|unable to resolve (?:host ?name|address)|"
        r"Unable to find address for",
        "The name of a node cannot be resolved.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "set environment.GLOO_SOCKET_IFNAME to the interface, or add the name to the name server",
        "Linux, getaddrinfo(3)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "address-in-use",
        r"EADDRINUSE|Address already in use",
        "A port is in use already.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "do not start a server at MASTER_PORT, and use no fixed ports",
        "Linux, bind(2)",
    ),
    KnownCause(
        "nccl-timeout",
        r"Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out|"
        r"watchdog (?:got )?stuck|NCCL watchdog thread terminated|ncclCommWatchdog|"
        r"Remote Rank did not send the data in time|timed out in blocking wait",
        "A collective was not complete within its time-out.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the rank that the others waited for: hangs/ in the run directory, hpcelastic stacks",
        _NCCL,
    ),
    KnownCause(
        "nccl-remote",
        r"remote process exited or there was a network error|ncclRemoteError|NCCL communicator was aborted|"
        r"Got completion .*(?:status|error)[ =]*5\b|"
        r"Socket recv failed while polling|while rank \d+ has inconsistent 0 params|"
        r"this error originated at tensorpipe/transport|"
        r"Connection closed by localRank",
        "Another rank has ended, or its connection was lost.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        _ELSEWHERE,
        _NCCL,
    ),
    KnownCause(
        "nccl-system",
        r"unhandled system error|ncclSystemError|ncclInternalError|ProcessGroupNCCL\.cpp:\d+, internal error|"
        r"\bHccl\w+, error code is\b|\bHCCL error in\b|\boneCCL\b.*init transport failed",
        "A system call of NCCL, NCCL itself, or a library like it has failed.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "set environment.NCCL_DEBUG to WARN for the reason",
        _NCCL,
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "nccl-cuda",
        r"unhandled cuda error|ncclUnhandledCudaError",
        "A call of CUDA in NCCL has failed.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "set environment.NCCL_DEBUG to WARN for the reason; look for an earlier error of CUDA",
        _NCCL,
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "gloo-timeout",
        r"Timed out waiting \d+ms for (?:recv|send) operation|Application timeout caused pair closure",
        "A collective of gloo was not complete within its time-out.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the rank that the others waited for: hangs/ in the run directory, hpcelastic stacks",
        _GLOO,
    ),
    KnownCause(
        "gloo-connect",
        r"connectFullMesh failed",
        "Ranks could not connect to each other.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "set environment.GLOO_SOCKET_IFNAME to an interface that all nodes reach: hpcelastic doctor",
        _GLOO,
    ),
    KnownCause(
        "store-timeout",
        r"client socket has timed out|wait timeout after \d+ms, keys|"
        r"Timed out after \d+ seconds waiting for clients|"
        r"Timed out initializing process group in store based barrier|failed to pass monitoredBarrier|"
        r"reached monitoredBarrier, but received errors|"
        r"ncclUniqueId from \[0\]",
        "A store of torch did not answer in time, or a rank did not arrive.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        _ELSEWHERE,
        _STORE,
    ),
    KnownCause(
        "store-lost",
        r"Did the remote server shutdown or crash|TCPStore.*(?:Broken pipe|Connection reset)|"
        r"dump signal from another rank",
        "The server of a store of torch has ended.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        _ELSEWHERE,
        _STORE,
    ),
    KnownCause(
        "store-connect",
        r"client socket has failed to connect to any network address|"
        r"client socket has failed to connect to \S+ \(errno: (?:101|110|113)\b",
        "The address of rank 0 cannot be reached.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check that the name of the node is resolved, and firewalls: hpcelastic doctor",
        _STORE,
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "mpi-interface",
        r"received unexpected process identifier|Open MPI failed to TCP connect to a peer",
        "A connection of Open MPI uses an interface by which the nodes do not reach each other.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "name the interface that all nodes reach: environment.OMPI_MCA_btl_tcp_if_include",
        "Open MPI, frequently asked questions: TCP",
    ),
    KnownCause(
        "mpi-peer",
        r"ORTE has lost communication|PRTE has lost communication|mpirun noticed that process rank|"
        r"peer process has unexpectedly disconnected|Horovod has been shut down|\b(?:RayActorError|"
        r"ActorDiedError|WorkerCrashedError)\b",
        "MPI, Horovod or Ray reports the end of another process or node.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        _ELSEWHERE,
        "Open MPI; Horovod; Ray",
    ),
    KnownCause(
        "nccl-usage",
        r"\bncclInvalid(?:Usage|Argument)\b",
        "NCCL was called in a way that it does not support.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "set environment.NCCL_DEBUG to WARN for the reason; check that each rank uses its own GPU",
        _NCCL,
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "killed-by-signal",
        r"SignalException: Process \d+ got signal",
        "A launcher was stopped by a signal.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "find out what sent it: SLURM at its time limit or for a preemption, or a person",
        "torch.distributed.elastic.multiprocessing",
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "rendezvous-closed",
        r"\bRendezvous(?:Closed|Graceful\w*|Timeout|Connection|State)Error\b",
        "The rendezvous of torchrun was closed, or its server has ended.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        _ELSEWHERE,
        "torch.distributed.elastic.rendezvous",
    ),
    KnownCause(
        "child-failed",
        r"\b(?:ChildFailedError|ProcessExitedException|SIGTERMException)\b|died with <Signals|"
        r"Forcefully terminating all other processes|crashed with exit code -?\d|"
        r"closing signal SIGTERM|Received 15 death signal|Failed to check the \"should dump\" flag",
        "A launcher reports that one of its processes has failed.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "read the error of that process, above in the log or in its own log",
        "torch.distributed.elastic.multiprocessing.errors",
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "connection-lost",
        r"Connection (?:reset|closed|aborted) by peer|Connection refused|Broken pipe|Socket closed",
        "The connection to another rank was lost.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        _ELSEWHERE,
        "Linux, socket(7)",
    ),
    KnownCause(
        "connection-timeout",
        r"Connection timed out",
        "A connection to another node has timed out.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the network between the nodes and firewalls: hpcelastic doctor",
        "Linux, connect(2)",
    ),
)
