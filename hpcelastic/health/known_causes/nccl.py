"""Failures that NCCL reports about its settings, its ranks and the machines."""

from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

CAUSES = (
    KnownCause(
        "nccl-ranks",
        r"Bootstrap Root : (?:mismatch in|rank \d+ of \d+ ranks has already checked in)|"
        r"NCCL WARN Invalid rank requested : |NCCL WARN Invalid device count requested|"
        r"improper usage of ncclCommInitRank|invalid root -?\d+ \(root should be",
        "Two processes have the same rank, or the processes do not agree on their number.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "give each process its own RANK below WORLD_SIZE, and each run its own port",
        "NCCL, bootstrap.cc, init.cc and misc/argcheck.cc",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-plugin",
        r"NCCL WARN Error: network [^\n]*not found|Failed to initialize any NET plugin|"
        r"NET/OFI Unable to find a protocol that worked",
        "The network plug-in that NCCL was told to use is not installed, or does not work on this node.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "remove environment.NCCL_NET and NCCL_NET_PLUGIN, or load the module of the plug-in in slurm.setup",
        "NCCL, plugin/net.cc; AWS, aws-ofi-nccl",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-pointer",
        r"NCCL WARN \w+ : \w+ 0x[0-9a-f]+ is not a valid pointer|"
        r"allocated on device \d+ mismatchs? with NCCL device \d+|NCCL WARN \w+ : \w+ argument is NULL|"
        r"NCCL WARN \w+ : invalid (?:type|reduction operation) \d+",
        "A collective was called with memory of another device, or with an invalid type.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "call torch.cuda.set_device(LOCAL_RANK) first, and pass tensors of this GPU to the collectives",
        "NCCL, misc/argcheck.cc",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-settings",
        r"Invalid NCCL_COMM_ID, please use format|verify NCCL_OOB_NET_IFNAME|specify a valid NCCL_NET_FORCE_MERGE|"
        r"NCCL_IB_SUBNET_PREFIX_LEN=\S+ is out of range|Could not open (?:MSCCL )?XML (?:graph|algorithm) file|"
        r"NCCL WARN XML (?:Parse|Mismatch)|XML (?:Topology|Graph) has wrong version|"
        r"NCCL WARN Invali[dg] config \w+ attribute|No algorithm/protocol available for function",
        "NCCL does not accept the value of one of its variables or files.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "remove or correct the variable that the line of NCCL names (environment.NCCL_...)",
        "NCCL, bootstrap.cc, graph/xml.cc, graph/topo.cc and enqueue.cc",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-no-transport",
        r"No transport found for rank \d+\[|NCCL WARN Rank \d+ has no transport for (?:send|recv) peer|"
        r"Could not find any local path from gpu \d+ to net",
        "NCCL has no way left by which two ranks can send data to each other.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "do not disable all ways (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_NET_DISABLE_INTRA), and show the "
        "devices to the container",
        "NCCL, transport.cc and proxy.cc",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-mixed-adapters",
        r"NET/IB : Attempted to (?:merge|connect) incompatible devices|"
        r"NET/IB : Remote \S+ device is incompatible with the local",
        "NCCL uses adapters of different kinds, such as InfiniBand and RoCE, which cannot talk to each other.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "name adapters of one kind that all nodes have: environment.NCCL_IB_HCA",
        "NCCL, transport/net_ib/connect.cc",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-imex",
        r"MNNVL \([^)\n]*\) is available but not working on this system",
        "GPUs of the node belong to an NVLink domain of several nodes, whose IMEX service does not work.",
        Blame.NODE,
        Certainty.LIKELY,
        "check nvidia-imex and its channels on the nodes (nvidia-imex-ctl -N); NCCL_MNNVL_ENABLE=0 avoids it",
        "NCCL, mnnvl.cc",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-adapters-differ",
        r"Detected mixed local (?:Net|CollNet) device counts across ranks \([^)\n]*\)\. Set NCCL_IGNORE",
        "The nodes have different numbers of network adapters: one of them may have lost an adapter.",
        Blame.NODE,
        Certainty.LIKELY,
        "find the node that has fewer adapters (ibstat), and drain it; NCCL_IGNORE_NET_MISMATCH=1 continues",
        "NCCL, init.cc",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "nccl-nvml",
        r"NCCL WARN nvml\w+\([^)\n]*\) failed: (?!Not Supported)|NCCL WARN Could not find real path of /sys/",
        "NCCL cannot read from the driver or the system which GPUs the node or the container has.",
        Blame.NODE,
        Certainty.LIKELY,
        "check nvidia-smi on the node and in the container: its devices, /sys, and rules of cgroups",
        "NCCL, misc/nvmlwrap.cc and os/linux.cc",
    ),
)
