"""Failures of files: of their kinds and formats, and of paths on filesystems."""

from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

CAUSES = (
    KnownCause(
        "damaged-data",
        r"truncated file: eof = |\bfile signature not found\b|File is not an LMDB file|file is not a database|"
        r"\bBadZipFile\b|\bBadGzipFile\b|Compressed file ended before the end-of-stream|zlib\.error: Error -\d|"
        r"\btarfile\.ReadError\b|pickle data was truncated|invalid load key, '\\x00'|Parquet magic bytes not found|"
        r"mmap length is greater than file ?size|cannot mmap an empty file|EOFError: No data left in file|"
        r"error during blosc decompression|image file is truncated|broken data stream when reading image file|"
        r"\bUnidentifiedImageError\b|cannot identify image file",
        "A file of the data is damaged, incomplete, or has not the expected format.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "compare its size and checksum with the source and load it again, or skip such files in the data set",
        "HDF5, H5F.c; py-lmdb; Python, zipfile, tarfile, zlib and pickle; Apache Arrow; NumPy; Pillow",
    ),
    KnownCause(
        "file-exists",
        r"\bFileExistsError\b|OSError: \[Errno 17\] File exists",
        "A file or a directory exists already, most often because several processes make it.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "make it on one rank only, or with exist_ok=True; remove what an earlier run has left",
        "Python, built-in exceptions",
    ),
    KnownCause(
        "file-kind",
        r"\b(?:IsADirectoryError|NotADirectoryError)\b|OSError: \[Errno 2[01]\] (?:Not|Is) a directory",
        "A path is a directory where a file is expected, or the reverse.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "correct the path that the message names",
        "Python, built-in exceptions",
    ),
    KnownCause(
        "file-pointer",
        r"invalid load key, '[v<]'",
        "A file is a pointer of Git LFS or a page of a web server, instead of the data.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "load the data themselves (git lfs pull), and check the address and the login of the download",
        "Python, pickle; Git LFS",
    ),
    KnownCause(
        "filesystem-lost-server",
        r"Communication error on send|Link has been severed|Unknown error 5(?:1[2-9]|2\d|3[01])\b|"
        r"\[Errno 71\] Protocol error|\[Errno 112\] Host is down|\[Errno 103\] Software caused connection abort: |"
        r"os error (?:70|67|112|52[1-9])\b",
        "A filesystem has lost the connection to its server.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "check the server of the filesystem, and the network between it and the node",
        "Linux, errno(3) and include/linux/errno.h; BeeGFS, StorageErrors.c; NFS and CIFS clients",
    ),
    KnownCause(
        "working-directory",
        r"couldn't chdir to [`'\"]|couldn't chdir to /tmp either|\bTERM_CWD_NOTEXIST\b|error: can't chdir to /",
        "The working directory of the job does not exist on the node: its filesystem is not mounted there, or it "
        "is a local one.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "check that the filesystem is mounted on the node, and submit from a directory that all nodes share",
        "SLURM, slurmstepd/mgr.c; IBM Spectrum LSF, bhist(1)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "temporary-directory",
        r"No usable temporary directory found|could not generate a random directory for manager socket",
        "No directory for temporary files can be written: /tmp of the node is full, read-only or missing.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "remove old files from /tmp of the node, or set TMPDIR to a directory with space",
        "Python, tempfile; torch, torch_shm_manager",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "name-too-long",
        r"\bFile name too long\b|AF_UNIX path (?:too long|length cannot exceed)|Argument list too long|"
        r"socket path '[^'\n]*' is too long",
        "A path or a command is longer than the system permits.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "use a shorter directory (TMPDIR, the name of the run), or pass long lists in a file",
        "Linux, errno(3) and unix(7)",
    ),
    KnownCause(
        "lmdb-limit",
        r"\bMDB_(?:MAP_FULL|READERS_FULL|DBS_FULL|TLS_FULL|MAP_RESIZED|TXN_FULL|BAD_RSLOT)\b",
        "A database of LMDB was opened with limits that are too small, or was used after a fork.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "raise map_size or max_readers of lmdb.open, and open the database in each process of the loader",
        "py-lmdb, lib/mdb.c",
    ),
    KnownCause(
        "automount",
        r"Too many levels of symbolic links",
        "A directory that is mounted on demand is not reachable on the node, or symbolic links form a circle.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "check the automounter and the mount on the node (autofs, mount), and the links of the path",
        "Linux, errno(3): ELOOP; autofs(5)",
    ),
    KnownCause(
        "operation-unsupported",
        r"OSError: \[Errno 95\] Operation not supported",
        "A filesystem does not offer an operation on a file, such as locks, links or direct access.",
        Blame.FILESYSTEM,
        Certainty.LIKELY,
        "put the file on another filesystem, such as a local one",
        "Linux, errno(3): EOPNOTSUPP",
    ),
    KnownCause(
        "cross-device",
        r"Invalid cross-device link",
        "A file cannot be renamed or linked from one filesystem to another.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "put temporary files into the same filesystem as the target (TMPDIR), or use shutil.move",
        "Linux, rename(2): EXDEV",
    ),
    KnownCause(
        "sqlite-file",
        r"unable to open database file|attempt to write a readonly database",
        "A database of SQLite cannot be opened or written: its directory does not exist, or may not be written.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "check that the directory exists on the node and may be written by the user",
        "SQLite, result codes: SQLITE_CANTOPEN and SQLITE_READONLY",
    ),
    KnownCause(
        "file-size",
        r"\[Errno 27\] File too large|\bFile size limit exceeded\b|\bSIGXFSZ\b",
        "A file is larger than the limit of the user or of the filesystem.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "raise the limit (ulimit -f), or write several smaller files",
        "Linux, write(2): EFBIG, and setrlimit(2)",
    ),
)
