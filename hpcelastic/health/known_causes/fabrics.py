"""Failures of fabrics between nodes and of their libraries: InfiniBand, EFA, Slingshot, UCX, libfabric, MPI."""

from hpcelastic.health.incidents import IncidentKind
from hpcelastic.health.known_causes.cause import ELSEWHERE, Blame, Certainty, KnownCause, Weight

CAUSES = (
    KnownCause(
        "queue-pair",
        r"create qp: failed on ibv_cmd_create_qp|failed to create (?:UD|RC|DC|TX|RX) QP|"
        r"devx_obj_create\(QP\) failed|ucp_ep_create\(\S+\) failed",
        "An adapter of InfiniBand could not make a connection to another rank.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "compare the settings and the limits of the nodes that report it, such as ulimit -l, and the number of "
        "connections of the job",
        "OpenUCX; rdma-core",
        weight=Weight.DETAIL,
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
        r"Got completion [^\n]*(?:status|error)[ =]*4\b|Local protection on mlx5|status=IBV_WC_LOC_PROT_ERR\b|"
        r"Couldn't enable GPUDirect RDMA|kernel module 'nv_peer_mem' not loaded|"
        r"GDR support reported to NCCL but then couldn't be configured",
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
        "nccl-gid",
        r"ibv_modify_qp failed with (?:error )?(?:22 |61 )?(?:Invalid argument|No data available)(?![^\n]*retrying)",
        "A connection over RoCE was made with an address index (GID) that does not fit the adapters.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "remove environment.NCCL_IB_GID_INDEX, or set it to the index of RoCE v2 on each node (show_gids)",
        "NCCL, misc/ibvwrap.cc",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "infiniband",
        r"(?:ibv_\w+|wrap_ibv_\w+).*failed|Got completion .*(?:status|error)[ =]*12\b|"
        r"[Tt]ransport retry count(?:er)? exceeded|Got async event ?: ?[^\n]*(?:error|down)\b|"
        r"status=IBV_WC_(?:RETRY_EXC|RESP_TIMEOUT)_ERR\b|async (?:fatal )?event(?: on CQ[^\n]*)?: (?:port|CQ) error",
        "An operation on InfiniBand has failed.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the ports and cables of the nodes (ibstat, perfquery) and the memory limit (ulimit -l)",
        "rdma-core, ibverbs; NVIDIA, NCCL: troubleshooting",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "efa-address",
        r"NET/OFI (?:Unable to insert remote address|Request [^\n]*UNDELIVERABLE)|"
        r"security group on either this instance or the peer|Unreachable remote - never received a response",
        "The network adapter cannot reach another node.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "let the security group of the nodes permit all traffic within itself",
        "Amazon EC2, Elastic Fabric Adapter",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "efa-peer",
        r"NET/OFI Request [^\n]*completed with error[^\n]*Error: (?:unknown error|Invalid address)|"
        r"Unresponsive (?:remote|receiver) \(|Connection was reset by remote peer|Bad queue pair \(QP\) number|"
        r"\bPTLTE_NOT_FOUND\b",
        "A request to another node has failed; its process may have ended.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        ELSEWHERE,
        "AWS, aws-ofi-nccl",
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
        "ucx-transports",
        r"UCX\s+ERROR no usable transports|NET/OFI Couldn't find any optimal provider|No valid libfabric provider|"
        r"attempting to run multi-node job without 'nic' in PSM3_DEVICES|"
        r"EFA provider requires at least libfabric version|NET/OFI GDR disabled on GDR-supported|"
        r"NET/OFI Disabling shared memory failed: Protocol",
        "The settings of the transport do not fit the network adapters of the node.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "remove UCX_TLS, UCX_NET_DEVICES or FI_PROVIDER, or choose what the node has (ucx_info -d, fi_info)",
        "OpenUCX; AWS, aws-ofi-nccl",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "ucx",
        r"\bUCX\s+ERROR\b|pml_ucx\.c:\d+ +Error",
        "An operation of UCX has failed.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the fabric of the nodes (ucx_info -d)",
        "OpenUCX",
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
        "mpi-connect",
        r"unable to complete a TCP connection|no active ports detected|no hfi units are active|"
        r"unable to connect from \"[^\"\n]+\" to \"|unable to get host address for |unable to run bstrap_proxy|"
        r"daemon has unexpectedly failed after launch and before|"
        r"was unable to connect to [^\n]* on any of the following addresses|"
        r"Timed out waiting for [^\n]*check connectivity between servers|"
        r"No sockets were able to be opened on the available protocols",
        "MPI cannot connect to another node.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the ports and cables of the node, and firewalls: hpcelastic doctor",
        "Open MPI, help texts",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "mpi-peer",
        r"ORTE has lost communication|PRTE has lost communication|mpirun noticed that process rank|"
        r"peer process has unexpectedly disconnected|Horovod has been shut down|\b(?:RayActorError|ActorDiedError|"
        r"WorkerCrashedError)\b|\b(?:mpiexec|prterun|prun|orterun) noticed that process rank|"
        r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES|MPI_ABORT was invoked on rank|"
        r"application called MPI_Abort\(|Per user-direction, the job has been aborted|"
        r"HYD_pmcd_pmip_control_cmd_cb[^\n]*assert \(!closed\) failed|HYDU_sock_write[^\n]*write error|"
        r"\bHorovodInternalError\b(?![^\n]*Mismatched)|detected that one or more processes exited with non-zero|"
        r"has exited due to process rank \d|\b(?:OwnerDiedError|ObjectLostError|ObjectReconstructionFailed\w*|"
        r"LocalRayletDiedError|ActorUnavailableError|GetTimeoutError)\b",
        "MPI, Horovod or Ray reports the end of another process or node.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        ELSEWHERE,
        "Open MPI; Horovod; Ray",
    ),
    KnownCause(
        "mpi-time-limit",
        r"user-provided time limit for job execution",
        "The launcher has ended the job at the time limit that it was given.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "raise or remove the option --timeout of mpirun (MPIEXEC_TIMEOUT)",
        "Open MPI, mpirun(1)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nvshmem-transport",
        r"nvshmem[^\n]*(?:init failed for transport|Unable to initialize any transports)",
        "NVSHMEM has no transport that fits the network adapters.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "choose another transport (NVSHMEM_REMOTE_TRANSPORT), or turn off the feature that needs it",
        "NVIDIA, NVSHMEM, environment variables",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "ucx-peer",
        r"UCX +ERROR[^\n]*(?:Connection reset|Endpoint timeout|Endpoint is not connected|Broken pipe|"
        r"Connection refused|rejected by remote peer)|\bUCXX?(?:ConnectionReset|NotConnected|EndpointTimeout)\w*",
        "The process at the other end of a connection of UCX has ended, or does not answer.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the first failure of another rank: hpcelastic status",
        "OpenUCX, ucs/type/status.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "mpi-daemon",
        r"was unable to reliably start one or more daemons|A daemon \(pid \w+\) died unexpectedly",
        "MPI could not start its daemon on a node, by ssh or by SLURM.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "read the lines above: the error of ssh, srun or the shell; check that the node can be reached, and that "
        "MPI is installed there",
        "PRRTE, help-errmgr-base.txt; Open MPI",
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "mpi-executable",
        r"unable to find the specified executable file|unable to launch the specified application|"
        r"has detected an attempt to run as root|HYDU_create_process[^\n]*execvp error on file|"
        r"could not find the specified working directory",
        "MPI could not start the program: its file or directory does not exist on the node, or the user may not "
        "start it.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "check the command and its path on each node; mpirun in a container needs --allow-run-as-root",
        "PRRTE, help-prun.txt; MPICH, hydra",
    ),
    KnownCause(
        "mpi-transports",
        r"at least one (?:pair of )?MPI process(?:es)? (?:are unable to reach each other|"
        r"is unreachable from another)|No components were able to be opened in the \w+ framework|"
        r"requested component was not found, or was unable to be opened",
        "MPI has no transport between two processes: its settings exclude it, or a component is not installed.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "remove OMPI_MCA_btl, OMPI_MCA_pml and OMPI_MCA_mtl from the environment, or name components that "
        "ompi_info shows",
        "Open MPI, help-mca-bml-r2.txt and help-mca-base.txt",
    ),
    KnownCause(
        "slingshot-queue",
        r"(?:Cassini|H/W) Event Queue overflow detected",
        "A queue of the Slingshot adapter was too small for the messages of the process.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "set environment.FI_CXI_DEFAULT_CQ_SIZE to a greater value, such as 131072, and FI_CXI_RX_MATCH_MODE to hybrid",
        "libfabric, prov/cxi and fi_cxi(7)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "omni-path",
        r"PSM[23]? was unable to open an endpoint|PSM[23]? can't open (?:nic|hfi) unit|"
        r"assign_context command failed|detected no HFIs, cannot continue|Unable to open (?:a context on )?HFI unit",
        "An Omni-Path adapter cannot be opened: its link is not active, or all of its contexts are in use.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the adapter (opainfo), and use fewer processes on a node; FI_PROVIDER=tcp avoids it",
        "Open MPI, help-mtl-psm2.txt; libfabric, prov/psm3 and prov/opx",
    ),
    KnownCause(
        "mpi-usage",
        r"function was (?:called before MPI_INIT|invoked before MPI was initialized)|called (?:before|"
        r"after) MPI_(?:INIT|FINALIZE) was invoked|Attempting to use an MPI routine|\bMPI_ERR_(?:TRUNCATE|RANK|COMM|"
        r"TYPE|COUNT|TAG|ARG|BUFFER|ROOT|OP|GROUP)\b|Message truncated; \d+ bytes received but buffer size is",
        "A function of MPI was called at the wrong time, or with arguments that do not fit those of the other ranks.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the call that the message names; ranks must agree on counts, types and the order of their calls",
        "MPI standard, error classes; MPICH, errnames.txt",
    ),
)
