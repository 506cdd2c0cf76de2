"""Failures of servers and services outside the run: on the Internet, in object stores, of launchers and of clusters."""

from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_ELSEWHERE = "look for the first failure of another rank: hpcelastic status"
_DOWNLOAD = "download models and data before the job; nodes of many clusters have no access to the Internet"

CAUSES = (
    KnownCause(
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "The certificate of a server is not accepted.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "install the certificates of the site (SSL_CERT_FILE, REQUESTS_CA_BUNDLE), or download before the job",
        "Python, ssl",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "ssh-access",
        r"Host key verification failed|Permission denied \(publickey",
        "A node does not accept a login by ssh, by which a launcher starts processes.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "set up keys for ssh between the nodes, or start the processes with srun",
        "OpenSSH, ssh(1)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "hub-offline",
        r"couldn't (?:connect to|reach) '?https?://|Max retries exceeded with url|\bLocalEntryNotFoundError\b|"
        r"Failed to establish a new connection|ConnectionPool[^\n]*timed out|\burlopen error|\[nltk_data\]\s+refused|"
        r"EndpointConnectionError|\bhttpx\.\w*(?:Timeout|ConnectError)|ClientConnector\w*Error",
        "A server outside of the cluster cannot be reached.",
        Blame.NETWORK,
        Certainty.LIKELY,
        _DOWNLOAD,
        "huggingface_hub, errors; urllib3",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "server-failed",
        r"\b50[0-4] (?:Server Error|Bad Gateway|Service (?:Temporarily )?Unavailable|Gateway)|\bSSLEOFError\b|"
        r"Connection broken: |\bIncompleteRead\b|\bFSTimeoutError\b|Run initialization has timed out",
        "A server outside of the cluster has failed, or the connection to it.",
        Blame.NETWORK,
        Certainty.LIKELY,
        _DOWNLOAD,
        "HTTP semantics, RFC 9110; Python, http.client",
    ),
    KnownCause(
        "etcd-server",
        r"EtcdException: Could not get the list of servers",
        "No etcd server answers at the endpoint of the rendezvous.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "start etcd, or correct the endpoint; the rendezvous of hpcelastic needs no server",
        "torch, etcd_rendezvous",
        weight=Weight.DETAIL,
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
        "command-missing",
        r":(?: line)? \d+: [^\n]*: command not found|The following module\(s\) are unknown",
        "A command or a module of the batch script does not exist on the node.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "correct the name, and load the environment in slurm.setup",
        "bash(1); Lmod",
    ),
    KnownCause(
        "ray-node",
        r"\bNodeDiedError\b|due to the node \(where this task was running\) was dead",
        "Ray has lost a node.",
        Blame.NODE,
        Certainty.LIKELY,
        "look for the reason in the logs of that node, such as a lack of memory",
        "Ray, exceptions",
    ),
    KnownCause(
        "mpi-connect",
        r"unable to complete a TCP connection|no active ports detected|no hfi units are active",
        "MPI cannot connect to another node.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the ports and cables of the node, and firewalls: hpcelastic doctor",
        "Open MPI, help texts",
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
        "head-lost",
        r"gcs_last_alive_time_|Failed to connect to GCS|coordinator detected missing heartbeats|"
        r"DEADLINE_EXCEEDED: Barrier timed out",
        "The process that coordinates the others does not answer.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        _ELSEWHERE,
        "Ray, fault tolerance of the GCS; JAX, coordination service",
        weight=Weight.DETAIL,
    ),
)
