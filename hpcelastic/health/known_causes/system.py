"""Failures of the operating system, of shells and of environments."""

from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

CAUSES = (
    KnownCause(
        "linker",
        r"\bld: cannot find -l\w+|collect2: error: ld returned",
        "A program could not be linked, because a library is missing.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "load the module of the library, or add its directory to LIBRARY_PATH",
        "GNU ld",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "exit-code-127",
        r"\bexit(?:ed with)?(?: exit)? ?(?:code|status)\s*[:=]?\s*12[67]\b(?![.\d])|\breturn code = 12[67]\b",
        "A shell could not start the program: it does not exist on the node (127), or may not be executed (126).",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "check PATH and the environment of the job on that node: srun --pty bash, and which python",
        "bash(1), exit status; POSIX, Shell Command Language",
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "conda-environment",
        r"shell has not been properly configured to use 'conda|Could not find conda environment|"
        r"Not a conda environment:|Run 'conda init' before|\bEnvironment(?:Name|Location)(?:NotFound|Not[A-Z]\w*)\b",
        "The environment of conda was not activated: it does not exist on the node, or the shell does not know conda.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "source conda's etc/profile.d/conda.sh in slurm.setup, and check the name of the environment",
        "conda, conda/exceptions.py and activate",
    ),
    KnownCause(
        "shell-killed",
        r": line \d+: +\d+ Killed\b",
        "A program of the batch script was killed from outside, such as by the kernel for a lack of memory.",
        Blame.UNKNOWN,
        Certainty.LIKELY,
        "look for a lack of memory in the accounting of the job, and request more memory (slurm.memory)",
        "bash(1), reports of jobs ended by a signal",
        weight=Weight.VAGUE,
    ),
    KnownCause(
        "user-unknown",
        r"getpwuid\(\): uid not found|getpwnam\(\): name not found|No user exists for uid \d+",
        "The user of the process has no entry in the list of users, most often in a container.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "add the user to /etc/passwd of the image, or set USER and the directories of caches (TORCHINDUCTOR_CACHE_DIR)",
        "Python, pwd and getpass; OpenSSH",
    ),
    KnownCause(
        "cpu-binding",
        r"CPU binding outside of job step allocation|Unable to satisfy cpu bind request|"
        r"Unable to layout tasks on given cpus|failed to set pid \d+'s affinity|libnuma: Warning: (?:node|"
        r"cpu) argument \S+ is out of range|sched_setaffinity[^\n]*: Invalid argument|"
        r"numa_sched_setaffinity\w*\(\) failed|result in binding more (?:processes|cpus|procs) than",
        "Processes should be bound to processors that the job does not have on the node.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "remove the binding (--cpu-bind=none), or request whole nodes or more processors (slurm.cpus_per_task)",
        "SLURM, src/plugins/task/affinity/dist_tasks.c; numactl, libnuma.c; taskset(1); Open MPI, help texts",
    ),
    KnownCause(
        "static-tls",
        r"cannot allocate memory in static TLS block",
        "A library was loaded too late: the loader has no space left for its thread-local variables.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "import it first, preload it (LD_PRELOAD), or raise glibc.rtld.optional_static_tls in GLIBC_TUNABLES",
        "glibc, elf/dl-reloc.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "library-not-executable",
        r"failed to map segment from shared object(?!: Cannot allocate memory)",
        "A library lies on a filesystem from which programs may not run (noexec), such as /tmp of the node.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "set TMPDIR, TRITON_CACHE_DIR and TORCH_EXTENSIONS_DIR to a directory that is mounted with exec",
        "glibc, elf/dl-load.c; Linux, mount(8): noexec",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "exec-format",
        r"\bExec format error\b|cannot execute binary file",
        "A program was built for another processor, or a script has no line with its interpreter.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "start the script with its line #!, and use builds and images for the processors of the node (uname -m)",
        "Linux, execve(2): ENOEXEC",
    ),
    KnownCause(
        "sudo",
        r"sudo: (?:a (?:password|terminal) is required|no tty present|effective uid is not 0|"
        r"The \"no new privileges\")|is not in the sudoers file|\(are you root\?\)|"
        r"Interactive authentication required",
        "A command needs the rights of an administrator, which the job does not have.",
        Blame.PROGRAM,
        Certainty.CERTAIN,
        "remove the command from the job, or have the administrators run it on the nodes",
        "sudo(8); dpkg; polkit",
    ),
    KnownCause(
        "spawn-parent-lost",
        r"\bspawn_main\b[\s\S]{0,1500}(?:pickle data was truncated|EOFError: Ran out of input)",
        "A process could not be started, because the one that starts it has ended.",
        Blame.UNKNOWN,
        Certainty.ECHO,
        "look for the error of the parent process, above in the log",
        "Python, multiprocessing.spawn",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "kerberos",
        r"\[Errno 126\] Required key not available|(?:\[Errno 12[78]\]|:) Key has (?:expired|been revoked)\b|"
        r"\[Errno 129\] Key was rejected|Ticket expired\b|No Kerberos credentials available|"
        r"[Cc]redentials cache (?:file )?\S+ not found",
        "The ticket of the user for a filesystem or a service has expired.",
        Blame.PROGRAM,
        Certainty.LIKELY,
        "renew the ticket within the job (krenew, k5start), for as long as the job runs",
        "Linux, errno(3): EKEYEXPIRED; MIT Kerberos; OpenAFS",
    ),
    KnownCause(
        "node-shutdown",
        r"The system is going down for \S+|The system will (?:reboot|power off|halt) (?:now|at )|"
        r"systemd-shutdown\[\d+\]: |reboot: (?:Restarting system|Power down)",
        "The node is being shut down or rebooted.",
        Blame.NODE,
        Certainty.LIKELY,
        "ask the administrators for the reason, and continue the run with --resume on other nodes",
        "systemd, shutdown(8)",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "kernel-panic",
        r"Kernel panic - not syncing|BUG: unable to handle (?:kernel|page fault)|kernel BUG at \S+:\d+|"
        r"\bOops: [0-9a-f]{4} \[#",
        "The kernel of the node has failed.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain the node, and look at its console and its crash dump",
        "Linux, kernel/panic.c",
        weight=Weight.DETAIL,
    ),
    KnownCause(
        "machine-check",
        r"Machine Check Exception: |\[Hardware Error\]: event severity: fatal|Memory page has hardware error|"
        r"severity=Uncorrect\w+ \(Fatal\)|mce: \[Hardware Error\]: PROCESSOR[^\n]*\n?[^\n]*\bUC\b",
        "The processor, the memory or a bus of the node has an uncorrectable error.",
        Blame.NODE,
        Certainty.CERTAIN,
        "drain the node, and have the hardware checked (ipmitool sel list, mcelog)",
        "Linux, x86 machine checks, APEI and PCIe AER",
        weight=Weight.DETAIL,
    ),
)
