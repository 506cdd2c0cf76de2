"""Failures of launchers, of clusters of other frameworks, of databases and of licences."""

from hpcelastic.health.known_causes.cause import ELSEWHERE, Blame, Certainty, KnownCause, Weight

CAUSES = (
    KnownCause(
        "ssh-connect",
        r"ssh: connect to host \S+ port \d+: |\b(?:kex|ssh)_exchange_identification: |"
        r"Timeout, server \S+ not responding|kex_exchange_identification: (?:read: )?Connection|"
        r"ssh_exchange_identification: ",
        "A node cannot be reached by ssh, by which a launcher starts processes.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check that the node is up, and that its ssh server admits logins from this node; srun needs no ssh",
        "OpenSSH, sshconnect.c and ssh.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "ssh-access",
        r"Host key verification failed|Permission denied \(publickey|REMOTE HOST IDENTIFICATION HAS CHANGED|"
        r"UNPROTECTED PRIVATE KEY FILE|Bad owner or permissions on \S*\.ssh/|Too many authentication failures|"
        r"Permission denied \((?=[\w,-]*(?:password|publickey|gssapi|keyboard|hostbased))|was not reachable via ssh|"
        r"ssh not successful for host|pam_slurm_adopt: you have no active jobs|has no active jobs on this node",
        "A node does not accept a login by ssh, by which a launcher starts processes.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "set up keys for ssh between the nodes, or start the processes with srun",
        "OpenSSH, ssh(1)",
        weight=Weight.DETAIL,
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
        "ray-node",
        r"\bNodeDiedError\b|due to the node \(where this task was running\) was dead",
        "Ray has lost a node.",
        Blame.NODE,
        Certainty.LIKELY,
        "look for the reason in the logs of that node, such as a lack of memory",
        "Ray, exceptions",
    ),
    KnownCause(
        "head-lost",
        r"gcs_last_alive_time_|Failed to connect to GCS|coordinator detected missing heartbeats|"
        r"DEADLINE_EXCEEDED: Barrier timed out|marked dead because the detector has missed too many heartbeats|"
        r"Raylet is terminated\. Termination is unexpected|Failed to register worker to Raylet|"
        r"JAX distributed service detected fatal errors|tasks are unhealthy \(stopped sending heartbeats\)|"
        r"task:\d+ heartbeat timeout|tried to connect with a different incarnation|"
        r"Polled an error from coordination service|(?:DEADLINE_EXCEEDED|UNAVAILABLE|"
        r"INTERNAL): (?:Timed out waiting for barrier|Getting \S+ (?:exchange )?key timed out)",
        "The process that coordinates the others does not answer.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        ELSEWHERE,
        "Ray, fault tolerance of the GCS; JAX, coordination service",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "database-server",
        r"could not connect to server: |connection to server at \"[^\"\n]+\"[^\n]*failed: (?!FATAL)|"
        r"Can't connect to (?:MySQL|local MySQL) server|MySQL server has gone away|Lost connection to MySQL server|"
        r"server closed the connection unexpectedly|SSL connection has been closed unexpectedly|"
        r"\bServerSelectionTimeoutError\b|redis\.exceptions\.(?:Connection|Timeout)Error|"
        r"Connecting to Redis: (?:Connection|Name|No route|Temporary)|\bError \d+ connecting to \S+:\d+|"
        r"etcdserver: (?:request timed out|no leader|leader changed)|etcd3\.exceptions\.Connection\w*|"
        r"\bEtcdConnectionFailed\b",
        "The server of a database or a store cannot be reached, or has closed the connection.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check that the server runs, its address and port, and firewalls between it and the nodes",
        "PostgreSQL, libpq; MySQL, error reference; redis-py, pymongo and etcd clients, exceptions",
    ),
    KnownCause(
        "database-access",
        r"password authentication failed for user|no pg_hba\.conf entry for|FATAL: +(?:role|"
        r"database) \"[^\"\n]+\" does not exist|\bAccess denied for user '|Unknown database '|"
        r"\bNOAUTH\b Authentication required|\bWRONGPASS\b|invalid username-password pair|"
        r"sorry, too many clients already|remaining connection slots are reserved|(?:OperationalError|"
        r"ERROR 1040)[^\n]*Too many connections|etcdserver: (?:authentication failed|user name is empty|"
        r"permission denied)",
        "A database or a store has refused the connection: the user, the password, the name, or too many connections.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the address with its user and password, and connect from few ranks only",
        "PostgreSQL, error codes; MySQL, error reference; Redis, AUTH; etcd",
    ),
    KnownCause(
        "grpc-peer",
        r"StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED)(?![\s\S]{0,300}(?:failed to connect to all addresses|"
        r"DNS resolution failed))",
        "The process that answers calls of gRPC has ended, or does not answer in time.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the first failure of another rank: hpcelastic status",
        "gRPC, status codes",
    ),
    KnownCause(
        "deepspeed-launcher",
        r"launcher '\w+' not installed|Hostfile (?:contains (?:a bad entry|multiple entries)|"
        r"is empty or not formatted)|Hostname '[^'\n]*' not found in hostfile|No slot '\d+' specified on host|"
        r"Num nodes is >1 but no extra nodes available|Unable to proceed, no GPU resources available|"
        r"MPI environment variables are not set\. Ensure",
        "The launcher of DeepSpeed misses a program, or its file of hosts does not fit its options.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct --hostfile, --include and --num_nodes, or install the launcher that is named (pdsh)",
        "DeepSpeed, launcher/runner.py",
    ),
    KnownCause(
        "ray-settings",
        r"\bRuntimeEnvSetupError\b|Could not find any running Ray instance|"
        r"Version mismatch: The cluster was started with|ray is trying to start at \S+, but is already running|"
        r"Can't find a `?node_ip_address\.json`? file",
        "Ray cannot start or join the cluster: no cluster runs here, its version differs, or an environment cannot "
        "be made.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "start the head of Ray first, with the same versions of Ray and Python on all nodes; its logs are in "
        "/tmp/ray/session_latest/logs",
        "Ray, exceptions and ray start",
    ),
    KnownCause(
        "dask-peer",
        r"all those workers died while running it|\bKilledWorker\b|\bCommClosedError\b|"
        r"Timed out trying to connect to (?:tcp|tls|ucx|ws)://|Nanny failed to start",
        "A worker or the scheduler of Dask has ended, or does not answer.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the reason in the logs of the workers and the scheduler, such as a lack of memory",
        "Dask, distributed/scheduler.py and comm/core.py",
    ),
    KnownCause(
        "grpc-refused",
        r"StatusCode\.(?:UNAUTHENTICATED|PERMISSION_DENIED)|Received message larger than max|"
        r"Sent message larger than max",
        "A server has refused a call of gRPC: credentials are missing, or the message is too large.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "set the token of the service in the environment of the job; send less at once, or raise "
        "grpc.max_receive_message_length",
        "gRPC, status codes",
    ),
    KnownCause(
        "licence-missing",
        r"License checkout failed|Licensed number of users already reached|(?:Failed|Unable|"
        r"Could not) to? ?(?:check ?out|obtain|acquire) (?:\w+ ){0,2}licen[sc]e|No Gurobi license found|"
        r"No license(?:s)? (?:available|found) for|license has expired",
        "A program has no licence: it is not installed, has expired, or all are in use.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "request the licence from the scheduler (--licenses), and check its file and date",
        "FlexNet Publisher, error codes; Gurobi",
    ),
    KnownCause(
        "licence-server",
        r"Cannot connect to license server|License server (?:machine is down|does not respond|system does not)|"
        r"FLEX(?:net|lm) (?:Licensing )?error: ?-(?:15|96|97|16|18)\b|Failed to connect to (?:token |"
        r"license )server",
        "A licence server does not answer.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the server, and that nodes reach its port (LM_LICENSE_FILE)",
        "FlexNet Publisher, error codes",
    ),
)
