"""Failures of servers and services outside the run: on the Internet, in object stores, of launchers and of clusters."""

from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_DOWNLOAD = "download models and data before the job; nodes of many clusters have no access to the Internet"

CAUSES = (
    KnownCause(
        "clock",
        r"failed: certificate is not yet valid|not yet valid: current time \S+ is before|Token used too early|"
        r"Signature expired: \S+ is now earlier than|Signature not yet current|Clock skew too great|"
        r"perhaps system time is not set",
        "The clock of the node is wrong.",
        Blame.NODE,
        Certainty.LIKELY,
        "set the clock of the node by the time server (chronyc tracking), and drain it until then",
        "Python, ssl; Go, crypto/x509; google-auth; Amazon, request signatures; MIT Kerberos; ninja",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|self[- ]signed certificate|"
        r"unable to get local issuer certificate|x509: certificate|SSL certificate problem|"
        r"SSL validation failed for|Could not find a suitable TLS CA certificate bundle|"
        r"server certificate verification failed|CERTIFICATE_UNKNOWN",
        "The certificate of a server is not accepted.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "install the certificates of the site (SSL_CERT_FILE, REQUESTS_CA_BUNDLE), or download before the job",
        "Python, ssl",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "proxy-login",
        r"407 Proxy Authentication Required|CONNECT tunnel failed, response 407|Received HTTP code 407 from proxy",
        "The proxy of the site needs a user name and a password.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "set HTTPS_PROXY with the user name and the password, or download before the job",
        "HTTP semantics, RFC 9110",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "hub-mode",
        r"outgoing traffic has been disabled|offline mode is enabled",
        "Files are not in the local cache, and downloads are turned off.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "download the files before the job, or unset HF_HUB_OFFLINE",
        "huggingface_hub, environment variables",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "tls-settings",
        r"SSL: (?:WRONG_VERSION_NUMBER|UNSUPPORTED_PROTOCOL|TLSV1_ALERT_\w+|SSLV3_ALERT_HANDSHAKE_FAILURE|"
        r"HTTP_REQUEST|UNSAFE_LEGACY_RENEGOTIATION_DISABLED|DH_KEY_TOO_SMALL|NO_PROTOCOLS_AVAILABLE)|"
        r"server gave HTTP response to HTTPS client",
        "A server or a proxy was called with a protocol that it does not speak, such as HTTPS at a port of HTTP.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "correct HTTPS_PROXY (http://, not https://) and the address of the server, or update the library of TLS",
        "OpenSSL, error codes; urllib3",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "local-server",
        r"(?:host='(?:localhost|127\.0\.0\.1)'|https?://(?:localhost|127\.0\.0\.1)\b)[^\n]*(?:Max retries exceeded|"
        r"refused|Failed to establish)",
        "No server listens at the address of the node itself.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "set the address of the server, such as MLFLOW_TRACKING_URI, or start the server on the node before the "
        "training",
        "urllib3; Linux, connect(2)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "hub-offline",
        r"couldn't (?:connect to|reach) '?https?://|Max retries exceeded with url|\bLocalEntryNotFoundError\b|"
        r"Failed to establish a new connection|ConnectionPool[^\n]*timed out|\burlopen error|"
        r"\[nltk_data\]\s+refused|EndpointConnectionError|\bhttpx\.\w*(?:Timeout|ConnectError)|"
        r"ClientConnector\w*Error|Couldn't reach '[^'\n]+' on the Hub|"
        r"no internet connection and the repo could not be found|\b(?:httpx2|httpcore2?)\.\w*(?:Timeout|"
        r"ConnectError)|does not seem to be (?:on huggingface\.co|served by a Hugging Face Hub endpoint)",
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
        r"Connection broken: |\bIncompleteRead\b|\bFSTimeoutError\b|Run initialization has timed out|"
        r"(?m:^(?![^\n]*(?:Retrying|retry in|retries left))[^\n]*(?:\b5[0-2]\d Server Error|Server error '5\d\d|"
        r"HTTP Error 5\d\d|ClientResponseError: 5\d\d|\bRemoteDisconnected\b|Remote end closed connection|"
        r"\bServerDisconnectedError\b|\bClientPayloadError\b|\bClientOSError\b|Server disconnected without sending|"
        r"UNEXPECTED_EOF_WHILE_READING|\bhttpx2?\.(?:ReadError|WriteError|RemoteProtocolError)|408 (?:Client Error|"
        r"Request Timeout)|The (?:read|write|handshake) operation timed out|"
        r"Consistency check failed: file should be of size|invalid hash value \(expected \"|"
        r"CAS service error[^\n]*(?:error sending request|IO Error|HTTP status server error|Request Middleware)))",
        "A server outside of the cluster has failed, or the connection to it.",
        Blame.NETWORK,
        Certainty.LIKELY,
        _DOWNLOAD,
        "HTTP semantics, RFC 9110; Python, http.client",
    ),
    KnownCause(
        "shell-script",
        r": line \d+: (?:syntax error\b|unexpected EOF while looking for matching|\w+: unbound variable)|"
        r": (?:line )?\d+: Syntax error: |Batch script contains DOS line breaks|does not look like a batch script|"
        r"Batch script (?:is empty|contains only whitespace)|Invalid directive found in batch script|"
        r"bad interpreter\([^)\n]*\^M|\^M: bad interpreter|\$'\\r': command not found|env: '?\u2018?(?:bash|"
        r"python3?)\\r",
        "The batch script is not valid.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the line that the message names (bash -n); convert line breaks of Windows with dos2unix",
        "bash(1) and dash(1); SLURM, src/sbatch/opt.c",
    ),
    KnownCause(
        "command-missing",
        r":(?: line)? \d+: [^\n]*: command not found|The following module\(s\) are unknown|(?:^|[\s-])(?:ba|z|"
        r"k)sh: (?:module|ml|conda|mamba|micromamba|srun|mpirun|mpiexec|torchrun|deepspeed|accelerate|python3?|"
        r"apptainer|singularity|nvcc|uv|poetry): command not found|\bsh: \d+: (?:module|conda|srun|mpirun|mpiexec|"
        r"torchrun|deepspeed|accelerate|python3?|apptainer|singularity|nvcc|ninja|gcc|g\+\+|cc): not found|"
        r"Unable to locate a modulefile for|exist but cannot be loaded as requested|"
        r"Cannot load module \"[^\"\n]+\"(?: because| without|\. At least)|Magic cookie '#%Module' missing",
        "A command or a module of the batch script does not exist on the node.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "correct the name, and load the environment in slurm.setup",
        "bash(1); Lmod",
    ),
    KnownCause(
        "hub-name",
        r"404 Client Error|Client error '404\b|HTTP Error 404\b|ClientResponseError: 404\b|"
        r"\b(?:RevisionNotFoundError|(?:Remote)?EntryNotFoundError|HFValidationError|DatasetNotFoundError)\b|"
        r"is not a valid model identifier listed on|does not appear to have a file named|"
        r"doesn't exist on the Hub or cannot be accessed|Cannot find callable \S+ in hubconf|ERROR 404: Not Found|"
        r"requested URL returned error: 404",
        "A model, a data set, a revision or a file does not exist under this name.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the name, the revision or the path; a private repository also needs a token (HF_TOKEN)",
        "huggingface_hub, errors; Transformers and datasets; torch.hub; HTTP semantics, RFC 9110",
    ),
    KnownCause(
        "object-store-access",
        r"An error occurred \((?:AccessDenied\w*|40[13]|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|"
        r"Expired\w*|InvalidToken|TokenRefreshRequired|UnrecognizedClientException|AuthFailure|InvalidClientTokenId|"
        r"RequestExpired)\) when calling|\b(?:NoCredentialsError|PartialCredentialsError|CredentialRetrievalError|"
        r"ProfileNotFound|NoAuthTokenError|TokenRetrievalError|UnauthorizedSSOTokenError|SSOTokenLoadError)\b|"
        r"Unable to locate credentials|google\.auth\.exceptions\.(?:DefaultCredentialsError|RefreshError)|"
        r"does not have (?:serviceusage|storage)\.\w+\.\w+ access|google\.api_core\.exceptions\.(?:Forbidden|"
        r"Unauthorized|Unauthenticated|PermissionDenied)|azure\.[\w.]*ClientAuthenticationError|"
        r"ErrorCode: ?Auth(?:orization|entication)\w*|not authorized to perform this operation",
        "An object store does not accept the credentials of the job, or there are none.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "set the credentials in the environment of the job (AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, "
        "AZURE_STORAGE_...), and check their expiry and rights",
        "botocore, exceptions; Amazon S3, error responses; google-auth; azure-core",
    ),
    KnownCause(
        "tracker-access",
        r"api_key not configured \(no-tty\)|No API key configured\. Use|API key verification failed|"
        r"API key must (?:have|be) \d+|\bapi key is invalid\b|Comet(?:\.ml|\.com)? requires an API key|"
        r"\bNeptune(?:Missing|Invalid)(?:Api|Project)\w*|ClearML configuration could not be found|"
        r"CommError: [^\n]*(?:permission denied|user is not logged in|returned error 40[134]|entity \S+ not found|"
        r"project not found|\b40[13]\b)|wandb: ERROR [^\n]*<Response \[40[134]\]>|"
        r"wandb\.errors\.(?:errors\.)?AuthenticationError",
        "A service that records experiments does not accept the key, the user or the project of the job.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "set its key in the environment of the job (WANDB_API_KEY, COMET_API_KEY, NEPTUNE_API_TOKEN, "
        "CLEARML_API_ACCESS_KEY), or use its offline mode",
        "wandb, sdk/lib/wbauth and errors; Comet; Neptune, exceptions; ClearML",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "server-unreachable",
        r"(?m:^(?![^\n]*(?:Retrying|retry in|retries left))[^\n]*(?:curl: \((?:5|7|28|35|52|"
        r"56)\)(?! CONNECT tunnel)|dial (?:tcp|udp)\b[^\n]*(?:timeout|refused|no route|misbehaving|no such host|"
        r"reset)|TLS handshake timeout|Client\.Timeout exceeded|CondaHTTPError: HTTP 000|"
        r"the remote end hung up unexpectedly|error: RPC failed; |fetch-pack: unexpected disconnect|"
        r"unable to access '[^'\n]*': (?:Failed to connect|Connection|Empty reply|Operation timed|gnutls|OpenSSL|"
        r"Recv failure)))",
        "A server of files, packages, images or sources cannot be reached.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "download models and data before the job; nodes of many clusters have no access to the Internet",
        "curl(1), exit codes; git, remote-curl.c; Go, net; conda",
    ),
    KnownCause(
        "package-missing",
        r"No matching distribution found for|Could not find a version that satisfies the requirement|"
        r"\bResolutionImpossible\b|\bPackagesNotFoundError\b|\bLibMambaUnsatisfiableError\b|\bUnsatisfiableError\b",
        "A package or an environment of Python or conda does not exist under this name, or versions contradict "
        "each other.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "prepare the environment before the job, and activate it in slurm.setup by its path",
        "pip; conda, exceptions",
    ),
    KnownCause(
        "proxy-refused",
        r"Tunnel connection failed: (?!407)|\b(?:requests\.exceptions|httpx2?|httpcore2?|"
        r"urllib3\.exceptions)\.ProxyError|Failed to connect to proxy URL|Unable to connect to proxy|"
        r"CONNECT tunnel failed, response (?!407)\d",
        "The proxy of the site cannot be reached, or does not let the connection pass.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY (addresses of the cluster), or download before the job",
        "Python, http.client; curl(1); httpx, exceptions",
    ),
    KnownCause(
        "object-store-name",
        r"An error occurred \((?:404|301|NoSuch\w+|InvalidBucketName|PermanentRedirect|AuthorizationHeaderMalformed|"
        r"IllegalLocationConstraint\w*)\) when calling|\bNoRegionError\b|You must specify a region\.|"
        r"google\.api_core\.exceptions\.(?:NotFound|BadRequest)|ErrorCode: ?(?:Blob|Container|Resource|Filesystem|"
        r"Path)NotFound|The specified (?:key|bucket|blob|container|resource) does not exist",
        "A bucket or an object does not exist under this name, or in this region.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the name of the bucket, the path or the region (AWS_DEFAULT_REGION, AWS_ENDPOINT_URL)",
        "Amazon S3, error responses; google-api-core; Azure Blob Storage, error codes",
    ),
    KnownCause(
        "tracker-server",
        r"CommError: [^\n]*(?:returned error 5\d\d|dial tcp|no such host)|\bNeptuneConnectionLost\w*|"
        r"MlflowException: API request to \S+ failed with (?:exception|timeout)|too many 50\d error responses",
        "The server that records experiments cannot be reached, or has failed.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "record offline (WANDB_MODE=offline), and send the records after the job",
        "wandb, core/internal/runupserter; MLflow, rest_utils; Neptune, exceptions",
    ),
    KnownCause(
        "wandb-service",
        r"\bServiceStartTimeoutError\b|Timed out waiting for wandb service to start|"
        r"Couldn't communicate with backend after \d+ seconds|CommError: Timed out initializing run|"
        r"\bServiceStartProcessError\b|\bManagerConnection(?:Refused)?Error\b|Run initialization has timed out",
        "Weights & Biases has not answered in time: its process on this node, or its server.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "use wandb on rank 0 only, put WANDB_DIR and the cache on a fast filesystem, or raise init_timeout",
        "wandb, sdk/lib/service",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "git-access",
        r"fatal: (?:Authentication failed for|could not read (?:Username|Password) for|"
        r"repository '[^'\n]+' not found|Remote branch \S+ not found|couldn't find remote ref|"
        r"could not read from remote repository)|remote: Repository not found|over its data quota|"
        r"batch response: (?:Rate limit|Authentication required|Repository or object not found)|"
        r"Object does not exist on the server|Please make sure you have the correct access rights",
        "A repository of git does not exist under this name, or its server does not accept the job.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the address or the branch, and set a token or a key; copy sources and files of Git LFS before the job",
        "git, http.c and credential.c; git-lfs, tq",
    ),
    KnownCause(
        "url-invalid",
        r"No scheme supplied\. Perhaps you meant|No connection adapters were found for|\bunknown url type\b|"
        r"\b(?:MissingSchema|InvalidSchema|InvalidURL|UnsupportedProtocol)\b:|Protocol not known: ",
        "An address of a server is not complete, or its protocol needs a package that is not installed.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the address or the variable with it (https://..., s3://...), and install its package (s3fs, gcsfs)",
        "requests and httpx, exceptions; fsspec",
    ),
    KnownCause(
        "mlflow-request",
        r"\bRESOURCE_(?:DOES_NOT_EXIST|ALREADY_EXISTS): |\bINVALID_PARAMETER_VALUE: |"
        r"API request to endpoint \S+ failed with error code 4\d\d",
        "The server of MLflow has refused a request: a name, a value or the credentials are wrong.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct MLFLOW_TRACKING_URI, the experiment and the run, and set MLFLOW_TRACKING_TOKEN",
        "MLflow, exceptions and rest_utils",
    ),
)
