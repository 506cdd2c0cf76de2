"""Failures of filesystems and disks, and of files on them."""

from hpcelastic.health.incidents import IncidentKind
from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_ERRNO = "Linux, errno(3)"

CAUSES = (
    KnownCause(
        "nfs-busy",
        r"Device or resource busy: '[^'\n]*\.nfs[0-9a-f]{8}",
        "A file on NFS was removed while a process had it open.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "set TMPDIR to a local directory, or close the file before its directory is removed",
        "Linux, nfs(5)",
    ),
    KnownCause(
        "system-disk",
        r"(?:\s|^)/(?:usr/)?s?bin/\S+(?:: bad interpreter)?: Input/output error|"
        r"(?:^|[\s'\"<])(?:/var/run|/etc|/lib|/usr)/\S+\"?: Input/output error",
        "The disk of the node with its operating system has an error.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain the node",
        _ERRNO,
        IncidentKind.HARDWARE,
        Weight.DETAIL,
    ),
    KnownCause(
        "filesystem-full",
        r"No space left on device|\bENOSPC\b|Not enough disk space|\bXMinioStorageFull\b|"
        r"reached its minimum free drive threshold|\bOutOfDiskError\b|Not enough space left in |"
        r"database or disk is full|\bnot enough disk space for use as cache|Failed to write to output filesystem|"
        r"\bdisk is full\b",
        "A filesystem is full.",
        Blame.FILESYSTEM,
        Certainty.CERTAIN,
        "remove files there, or write elsewhere; hpcelastic continues once there is space",
        _ERRNO,
    ),
    KnownCause(
        "quota",
        r"Disk quota exceeded|\bEDQUOT\b",
        "The quota of the user or the project is used up.",
        Blame.FILESYSTEM,
        Certainty.CERTAIN,
        "remove files, or ask for a greater quota",
        _ERRNO,
    ),
    KnownCause(
        "read-only",
        r"Read-only file system|\bEROFS\b",
        "A filesystem is read-only.",
        Blame.FILESYSTEM,
        Certainty.CERTAIN,
        "write elsewhere; a filesystem that becomes read-only has errors: see the kernel's log",
        _ERRNO,
    ),
    KnownCause(
        "stale-handle",
        r"Stale file handle|Stale NFS file handle|\bESTALE\b",
        "A file was removed on another node, or its filesystem was mounted again.",
        Blame.FILESYSTEM,
        Certainty.CERTAIN,
        "check the mount of the node; do not remove files that a run uses",
        _ERRNO,
    ),
    KnownCause(
        "checkpoint-write",
        r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|OSError: \d+ requested and \d+ written",
        "A checkpoint could not be written, most often because the filesystem or the quota is full.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "check the space and the quota of its directory; hpcelastic continues once there is space",
        "torch.save",
    ),
    KnownCause(
        "open-file-removed",
        r"\[Errno 39\] Directory not empty",
        "A directory could not be removed: a shared filesystem keeps files there that a process has open.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "remove directories after all processes have closed their files, or ignore the error",
        "Linux, NFS: files named .nfs",
    ),
    KnownCause(
        "file-busy",
        r"\[Errno 16\] Device or resource busy(?![^\n]*\.nfs)",
        "A filesystem does not permit an operation on a file that a process has open.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "put caches of compilers and temporary files on a local filesystem: TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR",
        "Linux, NFS and rename(2)",
    ),
    KnownCause(
        "no-memory-map",
        r"OSError: (?:\[Errno 19\] )?No such device",
        "A filesystem does not permit to map a file into memory.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "copy the file to a local filesystem",
        "Linux, mmap(2)",
    ),
    KnownCause(
        "file-locked",
        r"unable to lock file, errno = 11\b|file is already open for (?:write|read-only|SWMR)|"
        r"is already open in this process|unable to open file: already open",
        "Two processes have opened the same file.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "write the file from one rank only, and open it after a barrier",
        "HDF5, file locking",
    ),
    KnownCause(
        "file-locks",
        r"No locks available|\bENOLCK\b|unable to lock file|does not appear to support flock|database is locked|"
        r"SQLite database: locking protocol|\[Errno 35\] Resource deadlock|errno = 35\b|"
        r"File locking failed in ADIOI|\[Errno 38\] Function not implemented",
        "The filesystem has not locked a file.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "put the file on a local filesystem, or turn off its locks (HDF5_USE_FILE_LOCKING=FALSE)",
        _ERRNO,
    ),
    KnownCause(
        "filesystem-silent",
        r"nfs: server \S+ not responding|blocked for more than \d+ seconds|ptlrpc_expire_one_request|"
        r"\(at \S+@\w+\) was lost; in progress operations|operation \w+ to node \S+@\w+ failed: rc = -|"
        r"ceph: mds\d+ (?:hung|caps stale)|libceph: (?:mon|osd|mds)\d+ [^\n]*(?:\bdown\b|connect error|"
        r"socket error)|\bMMFS_(?:SYSTEM_UNMOUNT|DISKFAIL|LONGDISKIO|FSSTRUCT|GENERIC)\b|"
        r"unmounted by the system with return code|NFS: state manager: [^\n]*failed",
        "A filesystem does not answer.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "check the server of the filesystem, and the network to it",
        "Linux, NFS client and hung tasks",
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "filesystem-evicted",
        r"Cannot send after transport endpoint shutdown|This client was evicted by|\bESHUTDOWN\b",
        "A server of the filesystem has evicted this node, or the connection to it was lost.",
        Blame.FILESYSTEM,
        Certainty.CERTAIN,
        "check the network between the node and the filesystem; the kernel's log of the node has the reason",
        "Lustre, Operations Manual; Linux, errno(3)",
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "local-disk",
        r"Buffer I/O error on dev|I/O error, dev (?:nvme|sd)|Aborting journal on device|"
        r"Remounting filesystem read-only|critical (?:medium|target) error, dev|nvme nvme\d+: controller is down|"
        r"md/raid\S*: Disk failure on|nvme nvme\d+: (?:Device not ready; aborting|Removing after probe failure|"
        r"Disabling device after reset failure)",
        "A disk of the node has failed.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain the node",
        "Linux, block layer and ext4",
        IncidentKind.HARDWARE,
        Weight.DETAIL,
    ),
    KnownCause(
        "object-store-connection",
        r"botocore\.exceptions\.\w*(?:Connection|Timeout|Endpoint)\w*|"
        r"An error occurred \(RequestTimeout\) when calling|botocore\.exceptions\.(?:HTTPClientError|"
        r"IncompleteReadError|ResponseStreamingError)|google\.auth\.exceptions\.TransportError|"
        r"google\.api_core\.exceptions\.(?:ServiceUnavailable|RetryError|GatewayTimeout|DeadlineExceeded|"
        r"InternalServerError|BadGateway)|azure\.core\.exceptions\.Service(?:Request|Response)(?:Timeout)?Error",
        "An object store did not answer.",
        Blame.NETWORK,
        Certainty.LIKELY,
        "check the network to the store; save to the cluster's filesystem and copy from there",
        "Amazon S3, API reference",
    ),
    KnownCause(
        "object-store",
        r"\bSlowDown\b|RequestTimeTooSkewed|An error occurred \((?:50[03]|InternalError|ServiceUnavailable|"
        r"Throttling\w*|TooManyRequests\w*|RequestLimitExceeded|RequestThrottled\w*)\) when calling|"
        r"ErrorCode: ?(?:ServerBusy|OperationTimedOut|InternalError)|google\.api_core\.exceptions\.TooManyRequests|"
        r"\bXMinioServerNotInitialized\b",
        "An object store was overloaded, or did not accept a request.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "repeat with fewer requests at once; save to the cluster's filesystem and copy from there",
        "Amazon S3, API reference",
    ),
    KnownCause(
        "local-filesystem",
        r"EXT4-fs error|XFS \([^)\n]*\): (?:Corruption|metadata I/O error|log I/O error)|"
        r"blk_update_request: I/O error|BTRFS (?:error|critical) \(device|XFS[^\n]*Shutting down filesystem|"
        r"Pool '[^'\n]+' has encountered an uncorrectable I/O failure",
        "The kernel reports errors of a local disk.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain the node, and have the disk replaced",
        "Linux, ext4 and xfs",
        IncidentKind.HARDWARE,
        Weight.DETAIL,
    ),
    KnownCause(
        "loop-devices",
        r"no loop devices available|failed to find loop device",
        "The node has no loop device left for the image of a container.",
        Blame.NODE,
        Certainty.LIKELY,
        "run on another node, and have the limit of loop devices raised (max_loop)",
        "Apptainer, User Guide",
        IncidentKind.SUSPECT,
        Weight.DETAIL,
    ),
    KnownCause(
        "fuse-ended",
        r"Transport endpoint is not connected|\bENOTCONN\b",
        "The process behind a mounted filesystem has ended.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "mount the filesystem again on this node",
        "Linux, fuse(4)",
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "filesystem-mount",
        r"mount\.(?:nfs4?|lustre|cifs|ceph|fuse\S*|beegfs): (?:access denied|Connection timed out|No such|mounting|"
        r"Failed to|mount(?:\(2\)| error| system call failed)|an incorrect mount|Protocol not supported|"
        r"requested NFS version)|\bMOUNTPOINT \S+ is stale|unable to access MOUNTPOINT",
        "A filesystem could not be mounted on the node.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "mount it by hand on the node, and check the server and its permissions for this node",
        "Linux, mount.nfs(8); Lustre, mount.lustre(8); s3fs-fuse, s3fs.cpp",
    ),
    KnownCause(
        "input-output",
        r"Input/output error|\bdisk I/O error|\bEIO\b|Structure needs cleaning|Remote I/O error|"
        r"\bEBADMSG\b|Errno 74\] Bad message",
        "A disk or a filesystem has an error.",
        Blame.FILESYSTEM,
        Certainty.CERTAIN,
        "look at the kernel's log of the node; run on another node if the file is on a local disk",
        _ERRNO,
        IncidentKind.SUSPECT,
    ),
    KnownCause(
        "no-safetensors",
        r"SafetensorError: Error while deserializing header",
        "A file of weights is no file of safetensors: its download is incomplete, or it is a pointer of Git LFS.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "compare the sizes of the files with those of the source, and download them again (git lfs pull)",
        "safetensors",
    ),
    KnownCause(
        "damaged-file",
        r"PytorchStreamReader failed|failed finding central directory|invalid magic number; corrupt file|"
        r"unexpected EOF, expected \d+ more bytes|Ran out of input|safetensors_rust\.SafetensorError|"
        r"database disk image is malformed|\bMDB_(?:CORRUPTED|PAGE_NOTFOUND)\b",
        "A file, most often a checkpoint, is damaged or incomplete.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "load an older checkpoint; save with Checkpoints, whose files are complete or absent",
        "torch.load",
    ),
)
