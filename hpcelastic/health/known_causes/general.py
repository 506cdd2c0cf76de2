"""Words that tell the part at fault where no message is known. They are tried last."""

from hpcelastic.health.known_causes.cause import Blame, Certainty, KnownCause, Weight

_SOURCE = "the words of the message"


def _words(id: str, pattern: str, text: str, blame: Blame, remedy: str) -> KnownCause:
    return KnownCause(id, pattern, text, blame, Certainty.LIKELY, remedy, _SOURCE, weight=Weight.VAGUE)


CAUSES = (
    _words(
        "words-user",
        r"\b(?:interrupted|cancell?ed|stopped|terminated) by (?:the )?user\b|keyboard interrupt",
        "A person has stopped the process.",
        Blame.USER,
        "continue the run with --resume",
    ),
    _words(
        "words-scheduler",
        r"\b(?:preempted|preemption notice|evicted|eviction)\b|"
        r"\bwall ?(?:clock|time)\b[^\n]*\b(?:exceeded|limit|expired)|"
        r"\btime limit\b[^\n]*\b(?:exceeded|reached|expired)",
        "The site has ended the job.",
        Blame.SCHEDULER,
        "look at the reason that the scheduler gives for the end of the job, and continue the run with --resume",
    ),
    _words(
        "words-hardware",
        r"\bhardware (?:error|failure|fault)|\bdevice (?:is |was )?lost\b|DEVICE_LOST|\bthermal (?:shutdown|trip)",
        "A message tells of a fault of the hardware.",
        Blame.NODE,
        "look at the kernel's log of the node; drain the node if it happens again",
    ),
    _words(
        "words-driver",
        r"\bdriver\b[^\n]*\b(?:mismatch|insufficient|not (?:loaded|found|running)|failed|too old)\b",
        "A message tells of a driver that does not work.",
        Blame.NODE,
        "check the driver on the node, and reboot the node",
    ),
    _words(
        "words-filesystem",
        r"\b(?:file ?system|mount(?:ed)?|disk|volume|quota|nfs|lustre|gpfs|beegfs|ceph)\b"
        r"[^\n]*\b(?:full|errors?|failed|failure|unavailable|read-only|not mounted|stale|exceeded|timed out)\b",
        "A message tells of a filesystem that does not work.",
        Blame.FILESYSTEM,
        "check the filesystem of the path that the message names",
    ),
    _words(
        "words-network",
        r"\b(?:failed|unable|could not|cannot|can't) (?:to )?(?:connect|reach|resolve|establish)\b|"
        r"\bconnect(?:ion)?\b[^\n]*\btimed out\b|\bunreachable\b|\bno route\b|\bnetwork error\b|\blink (?:is )?down\b",
        "A message tells of a connection that cannot be made.",
        Blame.NETWORK,
        "check interfaces, names and firewalls: hpcelastic doctor",
    ),
    _words(
        "words-memory",
        r"\bOOM(?:Killed)?\b(?! killer due)|\bout of (?:host )?memory\b|\bmemory limit\b|\bexceeded\b[^\n]*\bmemory\b",
        "A message tells of too little memory.",
        Blame.PROGRAM,
        "request more memory (slurm.memory), or use smaller batches and caches",
    ),
)
