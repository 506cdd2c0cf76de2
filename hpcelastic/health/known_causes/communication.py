"""Failures of collectives, stores and networks."""

from hpcelastic.health.known_causes.cause import ELSEWHERE, Blame, Certainty, KnownCause, Weight

_NCCL = "NVIDIA, NCCL: troubleshooting, and torch's ProcessGroupNCCL"
_GLOO = "gloo, transport/tcp"
_STORE = "torch, TCPStore"

CAUSES = (
    KnownCause(
        "collective-mismatch",
        r"Detected mismatch between collectives on ranks|collective.*shape mismatch across ranks|"
        r"collective mismatch error, local size|"
        r"message truncated : receiving \d+ bytes instead of(?![\s\S]*Connection reset)|"
        r"op\.preamble\.length <= op\.nbytes|Mismatched [\w/ ]+: One rank (?:had|did|sent|specified|was)",
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
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "Two ranks use the same GPU.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "call torch.cuda.set_device(LOCAL_RANK) before the first collective",
        _NCCL,
    ),
    KnownCause(
        "nccl-version",
        r"Mismatched NCCL version detected|Message truncated : received \d[\d,]* bytes instead of \d|"
        r"NCCL version mismatch with remote peer|NCCL library is (?:too old|not backwards compatible)|"
        r"socketFinalizeAccept: wrong type \d+ != \d+",
        "Nodes have different versions of NCCL.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use the same environment on all nodes",
        _NCCL,
    ),
    KnownCause(
        "nccl-wrong-interface",
        r"NCCL_SOCKET_IFNAME set[\s\S]*no socket interface found|"
        r"NCCL_SOCKET_IFNAME set[\s\S]*(?:NET/Socket : (?:no interface|No usable listening interface) found|"
        r"No IP interface found)",
        "NCCL_SOCKET_IFNAME names an interface that the node does not have.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "remove NCCL_SOCKET_IFNAME, or set it to an interface of all nodes (ip -brief address)",
        _NCCL,
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-no-interface",
        r"no socket interface found|Bootstrap : no socket interface|NET/Socket : 0 interfaces found|"
        r"neither AF_INET\(2\) nor AF_INET6|NET/Socket : (?:no interface|No usable listening interface) found|"
        r"NET/IB : No IP interface found",
        "NCCL found no network interface.",
        Blame.NETWORK,
        Certainty.CERTAIN,
        "set environment.NCCL_SOCKET_IFNAME to the name of the interface",
        _NCCL,
    ),
    KnownCause(
        "nccl-connect",
        r"socketStartConnect: Connect to|socketPollConnect|socketProgress[^\n]*(?:unreachable|timed out)|"
        r"NCCL WARN Connect to (?:127|172\.(?:1[6-9]|2\d|3[01]))\.\S+ failed|"
        r"NCCL WARN Connect to \S+ failed : (?!Connection refused)|"
        r"NCCL WARN Net : Connect to \S+ failed : (?!Connection refused)",
        "NCCL could not connect to another node.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "set environment.NCCL_SOCKET_IFNAME to an interface that all nodes reach: hpcelastic doctor",
        _NCCL,
        weight=Weight.DETAIL,
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
        "gloo-interface-name",
        r"ifa != nullptr\. Unable to find (?:address|interface) for: |Unable to find address for: \d+\.\d+",
        "GLOO_SOCKET_IFNAME is not the name of an interface of this node.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "set it to the name of an interface that each node has, such as ib0, or remove it",
        "gloo, transport/tcp",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "host-name",
        r"Temporary failure in name resolution|Name or service not known|unable to resolve (?:host ?name|address)|"
        r"DNS resolution failed for|Domain name not found|No address associated with hostname|\bsocket\.gaierror\b|"
        r"Could not resolve (?:host|proxy)\b|Name does not resolve|nodename nor servname provided",
        "The name of a node cannot be resolved.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "set environment.GLOO_SOCKET_IFNAME to the interface, or add the name to the name server",
        "Linux, getaddrinfo(3)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "address-in-use",
        r"EADDRINUSE|Address already in use|listen on ip\[[^\]\n]*\] and specific port\[\d+\] fail",
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
        r"Remote Rank did not send the data in time|timed out in blocking wait|"
        r"Exception \(either an error or timeout\) detected by watchdog|Received a (?:global timeout|"
        r"dump signal[^\n]*) from another rank|Terminating the process after attempting to dump debug info|"
        r"is stalled for longer than \d+ seconds\. Will shutdown",
        "A collective was not complete within its time-out.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the rank that the others waited for: hangs/ in the run directory, hpcelastic stacks",
        _NCCL,
    ),
    KnownCause(
        "nccl-remote",
        r"remote process exited or there was a network error|ncclRemoteError|NCCL communicator was aborted|"
        r"Got completion .*(?:status|error)[ =]*5\b|Socket recv failed while polling|"
        r"while rank \d+ has inconsistent 0 params|this error originated at tensorpipe/transport|"
        r"Connection closed by localRank|status=IBV_WC_(?:WR_FLUSH|REM_OP|REM_ACCESS|RNR_RETRY_EXC)_ERR\b|"
        r"Got completion .*(?:status|error)[ =]*1[013]\b|\[Service thread\] (?:Could not receive type|"
        r"Error encountered progressing)|\[Proxy Service \d+\] Failed to execute operation|dequeue_and_set_error|"
        r"Communication error with rank \d",
        "Another rank has ended, or its connection was lost.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        ELSEWHERE,
        _NCCL,
    ),
    KnownCause(
        "nccl-system",
        r"unhandled system error|ncclSystemError|ncclInternalError|ProcessGroupNCCL\.cpp:\d+, internal error|"
        r"\bHccl\w+, error code is\b|\bHCCL error in\b|\boneCCL\b.*init transport failed|HCCL function error",
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
        r"Timed out waiting \d+ms for (?:recv|send) operation|Application timeout caused pair closure|"
        r"gloo/transport/\w+/\w+\.cc:\d+\] (?:Read|Write|Send|Connect) timeout \[|"
        r"Timeout waiting for memory region from",
        "A collective of gloo was not complete within its time-out.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the rank that the others waited for: hangs/ in the run directory, hpcelastic stacks",
        _GLOO,
    ),
    KnownCause(
        "gloo-connect-unknown",
        r"connectFullMesh failed with \[[^\]\n]*\] no error|RuntimeError: connect\(\) timed out",
        "A rank could not connect to another one, which may have ended.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        ELSEWHERE,
        _GLOO,
    ),
    KnownCause(
        "gloo-connect",
        r"connectFullMesh failed(?! with \[[^\]\n]*\] no error)",
        "Ranks could not connect to each other.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "set environment.GLOO_SOCKET_IFNAME to an interface that all nodes reach: hpcelastic doctor",
        _GLOO,
    ),
    KnownCause(
        "store-timeout",
        r"client socket has timed out|wait timeout after \d+ms, keys|"
        r"Timed out after \d+ seconds waiting for clients|Wait timeout after \d+ seconds for key|"
        r"Timed out initializing process group in store based barrier|failed to pass monitoredBarrier|"
        r"reached monitoredBarrier, but received errors|ncclUniqueId from \[0\]|\bDistStoreError: Socket Timeout|"
        r"\bRuntimeError: Socket Timeout|Timed out waiting on barrier on rank|timed out in monitoredBarrier after|"
        r"(?:barrier|gather) failed -- missing ranks|Timeout waiting for key: |Wait timeout for key\(s\)|"
        r"Timeout while waiting for keys in EtcdStore|timed out waiting for all \d+ members to join|"
        r"Stop_waiting response is expected|RPC ran for more than set timeout|"
        r"failed to connect/validate to host \S+ - timed out",
        "A store of torch did not answer in time, or a rank did not arrive.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        ELSEWHERE,
        _STORE,
    ),
    KnownCause(
        "store-lost",
        r"Did the remote server shutdown or crash|TCPStore.*(?:Broken pipe|Connection reset)|"
        r"dump signal from another rank|\bfailed to (?:recv, got|send, sent) 0 bytes|(?:recv|send)(?:Value|Bytes|"
        r"Vector)?(?:WithTimeout)? failed on SocketImpl|The connection to the C10d store has failed",
        "The server of a store of torch has ended.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        ELSEWHERE,
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
        ELSEWHERE,
        "torch.distributed.elastic.rendezvous",
    ),
    KnownCause(
        "child-failed",
        r"\b(?:ChildFailedError|ProcessExitedException|SIGTERMException)\b|died with <Signals|"
        r"Forcefully terminating all other processes|crashed with exit code -?\d|closing signal SIGTERM|"
        r"Received 15 death signal|Failed to check the \"should dump\" flag|"
        r"\bpdsh@\S+: \S+: ssh exited with exit code \d|reached the specified backoff limit|"
        r"\bBackoffLimitExceeded\b|Back-off restarting failed container|"
        r"The replica \S+ exited with a non-zero status|\bExecuteUserScriptError\b|\d+ (?:Worker|"
        r"Master) replica\(s\) failed|: rank \d+ (?:died from signal \d+|exited with code [1-9])|(?:mpirun|"
        r"prterun) detected that one or more processes|Primary job +terminated normally, but",
        "A launcher reports that one of its processes has failed.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "read the error of that process, above in the log or in its own log",
        "torch.distributed.elastic.multiprocessing.errors",
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "connection-lost",
        r"Connection (?:reset|closed|aborted) by peer|Connection refused|Broken pipe|Socket closed|"
        r"Connection closed by remote peer|connection reset by remote|Software caused connection abort|"
        r"\bConnectionAbortedError\b|Pair is not connected \(|Backing context not fully connected|"
        r"Socket unexpectedly closed",
        "The connection to another rank was lost.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        ELSEWHERE,
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
    KnownCause(
        "process-group-missing",
        r"Default process group has not been initialized|DeepSpeed backend not set|"
        r"Distributed backend is not initialized|Horovod has not been initialized|"
        r"trying to initialize the default process group twice|Invalid process group specified",
        "A function of the process group was called before it was made, after its end, or it was made twice.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "call init_process_group once in each process, and before the first collective",
        "torch, distributed_c10d.py; DeepSpeed, comm.py; Horovod, basics.py",
    ),
    KnownCause(
        "rendezvous-settings",
        r"environment variable \w+ expected, but not set|rendezvous: (?:rank|world size) parameter missing|"
        r"The rendezvous backend '\w*' is not registered|of the rendezvous endpoint '[^'\n]*' must be|"
        r"is not in \"?MIN:MAX\"? format|Unsupported nproc_per_node value|(?:rank|"
        r"endpoint) is absent in RendezvousParameters|Port is absent in endpoint|"
        r"The rendezvous configuration (?:option|string)|No rendezvous handler for",
        "A setting that tells the processes how to find each other is missing or wrong.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "start the script with hpcelastic or torchrun, and correct the variable or option that the message names",
        "torch, distributed/rendezvous.py, run.py and elastic/rendezvous",
    ),
    KnownCause(
        "address-not-local",
        r"(?:failed to (?:listen|bind)|\bbind(?:ing)?\b)[^\n]*(?:EADDRNOTAVAIL|Cannot assign requested address)|"
        r"\bOSError: \[Errno 99\] Cannot assign requested address",
        "A server was told to listen at an address that this node does not have.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "set MASTER_ADDR or --rdzv-endpoint to a name or an address of the node with rank 0",
        "torch, c10d/socket.cpp; Linux, bind(2)",
    ),
    KnownCause(
        "backend-missing",
        r"Distributed package doesn't have \w+ ?built in|No backend type associated with device type|"
        r"Unknown c10d backend type|Tensors must be CUDA and dense|Horovod has not been built with \w+ support",
        "The communication backend is not in this build of the library, or does not fit the device of the tensors.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "install a build with this backend, and use nccl for tensors on GPUs and gloo for others: "
        'backend="cpu:gloo,cuda:nccl"',
        "torch, distributed_c10d.py and ProcessGroup.hpp",
    ),
    KnownCause(
        "world-size",
        r"DeviceMesh only support homogeneous|Mesh should not be bigger than default world size|"
        r"ElasticityIncompatibleWorldSize|world[_ ]size ?\(?\d+\)? is not (?:divisible by|valid with)|"
        r"the new group's world size should be less or|group_size' \(\d+\) must not exceed the world size",
        "The number of processes does not fit the parallel layout that the script asks for.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the sizes of the mesh or the groups, or start as many processes as their product",
        "torch, device_mesh.py; DeepSpeed, elasticity.py; Megatron-LM, arguments.py",
    ),
)
