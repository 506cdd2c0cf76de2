"""The events of the agents' event logs: one dataclass for each kind of event.

Pure. In the file, an event is one line with a JSON object: ``time`` in seconds since the epoch, ``up`` in seconds since
the start of the node's operating system, ``node`` with the name of the node, ``event`` with the ``kind`` of the event,
and the fields of its dataclass. A field that is None is left out. All versions share this format, so a field that is
added to a kind must have a default. docs/events.md lists all kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, Union, get_args

from hpcelastic.protocol.codec import DecodeError, decode, encode, renamed
from hpcelastic.protocol.state import Cause, Phase, RequeueReason


@dataclass(frozen=True, kw_only=True)
class AgentStarted:
    """The agent of a node takes part in the run from now on."""

    kind: ClassVar[str] = "agent started"
    address: str
    """The address at which other nodes reach this node."""

    pid: int
    """Process id of the agent."""

    workers: int | None = None
    """Number of workers on this node. None if another program starts the workers, for example torchrun."""

    launched: float | None = None
    """The time at which the agent's process was created, in seconds since the node's start."""

    machine: str | None = None
    """SLURM's name of the node. None in the event logs of earlier versions."""

    job: str | None = None
    """The SLURM job that has started the agent, and its restart count, as ``JOB.RESTART``. None outside of SLURM."""

    job_nodes: int | None = None
    """Total number of nodes of ``job``. None if it is unknown."""

    job_start: float | None = None
    """The time at which SLURM started the job, in seconds since the epoch. None if SLURM does not tell it."""

    output: str | None = None
    """The file that has the output of the agent. None if the output goes to no file."""

    version: str | None = None
    """The version of hpcelastic."""


@dataclass(frozen=True, kw_only=True)
class JobEligible:
    """SLURM has told when it could start the job of this agent. One agent of a job asks once."""

    kind: ClassVar[str] = "job eligible"
    since: float
    """Seconds since the epoch. Before, the job waited for another job or for a time, or it was held."""


@dataclass(frozen=True, kw_only=True)
class AgentRestarted:
    """The agent was started again on its node because the previous agent had died. It follows `AgentStarted`."""

    kind: ClassVar[str] = "agent restarted"
    number: int
    """Number of restarts in a row."""

    reason: str
    """The cause of death of the previous agent."""


@dataclass(frozen=True, kw_only=True)
class AgentEnded:
    """The agent has stopped its workers and has published its departure, or tried to."""

    kind: ClassVar[str] = "agent ended"


@dataclass(frozen=True, kw_only=True)
class StateChanged:
    """The agent has read a new version of the register."""

    kind: ClassVar[str] = "state changed"
    version: int
    """The version of the register."""

    phase: Phase
    round: int
    restarts: int
    """The spent part of the restart budget, in restarts."""

    reason: str
    """The reason for this version, for people."""

    cause: Cause | None = None
    """The cause for which the round has ended. None in all other phases, and in the logs of earlier versions."""

    lost: str | None = None
    """The node, with its incarnation, whose loss has ended the round. None if another reason has."""


@dataclass(frozen=True, kw_only=True)
class Decided:
    """The agent has written a version of the register. Only the event log of this agent has this event."""

    kind: ClassVar[str] = "decided"
    version: int
    phase: Phase
    round: int
    reason: str
    """The reason for this version, for people."""

    cause: Cause | None = None
    lost: str | None = None
    """The node whose loss has ended the round; see `StateChanged`."""

    evidence: str | None = None
    """How it is known that ``lost`` has no process any more: ``lease`` if its lease has expired, or ``reported by`` and
    the node that has reported it."""

    silence: float | None = None
    """Seconds since this node has last seen a renewal of the lease of ``lost``; None if it never has."""

    members: tuple[str, ...] | None = None
    """The nodes of the round that begins with this version, in the order of their ranks. None in other phases."""


@dataclass(frozen=True, kw_only=True)
class PeerSuspected:
    """The network has reported a sign that another node of the round may be dead."""

    kind: ClassVar[str] = "peer suspected"
    peer: str
    """The other node, with its incarnation."""

    sign: str
    """``link lost``: the connection has broken. ``refused``: its kernel refuses connections. ``silent``: its heartbeats
    are missing."""


@dataclass(frozen=True, kw_only=True)
class ClockMeasured:
    """The agent has compared its clock with that of the run's filesystem."""

    kind: ClassVar[str] = "clock measured"
    least: float
    """The filesystem's time, in seconds since the epoch, minus the seconds since the node's start, at least."""

    most: float
    """The same difference, at most."""


@dataclass(frozen=True, kw_only=True)
class SignalReceived:
    """The agent has received a signal."""

    kind: ClassVar[str] = "signal"
    signal: str
    """Name of the signal, for example SIGTERM."""


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """The node begins to leave the run."""

    kind: ClassVar[str] = "leaving"
    reason: str
    seconds: float
    """Seconds that the workers of the node still have."""

    requeue: RequeueReason = field(default="", metadata=renamed("again"))
    """Why the agents of the node's job requeue the job; see `hpcelastic.protocol.state.Notice`."""


@dataclass(frozen=True, kw_only=True)
class WorkersStarted:
    """All workers of the node have started in a round."""

    kind: ClassVar[str] = "workers started"
    round: int
    world_size: int
    """Number of workers in the round."""

    group_rank: int
    """Rank of the node among the nodes of the round."""

    group_world_size: int
    """Number of nodes in the round."""

    role_rank: int
    """Rank of the node's first worker among the workers of the same role."""

    role_world_size: int
    """Number of workers of the same role."""

    pids: Mapping[int, int]
    """Process id of each worker of the node, by rank. In JSON the ranks are strings."""

    cpus: str
    """Numbers of the processors that the workers of the node may use, such as ``0-3,8``."""

    gpus: str | None = None
    """CUDA_VISIBLE_DEVICES of the agent; None if it is not set."""

    bound: str | None = None
    """The processors of each worker, by local rank, such as ``0-3;4-7``. None if workers are not bound separately."""

    master_addr: str | None = None
    """Address of the store of the round. None in the event logs of earlier versions."""

    master_port: int | None = None
    """TCP port of the store of the round. None in the event logs of earlier versions."""

    resumed: tuple[int, ...] | None = None
    """Ranks of the workers whose processes have stayed from an earlier round. None if all processes are new."""


@dataclass(frozen=True, kw_only=True)
class WorkerEnded:
    """A worker has ended, well or not. Workers that the agent stops do not have this event."""

    kind: ClassVar[str] = "worker ended"
    round: int
    rank: int
    exit_code: int
    """The exit status, or minus the number of the signal that ended the worker."""

    mark: str | None = None
    """The last progress mark of the worker in the round, such as ``step`` or ``saved``. None if it has written none."""

    mark_value: int | None = None
    """The number of the step of the mark; see `hpcelastic.ipc.marks.MarkKind`."""

    mark_age: float | None = None
    """Seconds from the mark until the agent has noticed the end."""

    step: int | None = None
    """The number of training steps that the worker had begun, in all rounds. None if it is unknown."""

    requested: bool | None = None
    """True if the worker had read a request to stop."""

    peak_memory: int | None = None
    """The largest part of the main memory that the process has used, in bytes."""

    cpu_seconds: float | None = None
    """Processor time of the process."""


@dataclass(frozen=True, kw_only=True)
class TimerExpired:
    """A timer has expired that a worker, or a process that the worker has started, had set with
    ``torch.distributed.elastic.timer``."""

    kind: ClassVar[str] = "timer expired"
    round: int
    rank: int
    """Rank of the worker."""

    pid: int
    """Process id of the process that had set the timer."""

    scope: str
    """Name of the timer: the ``scope`` of ``expires``."""

    sent: str | None = None
    """Name of the signal that the agent has sent to the process. None if the timer asks for no signal."""


@dataclass(frozen=True, kw_only=True)
class WorkersStopped:
    """The agent has stopped its workers, or they have stopped at the end of a step on request."""

    kind: ClassVar[str] = "workers stopped"
    round: int
    reason: str
    seconds: float | None = None
    """Seconds that the agent needed to stop them. None if they have stopped on request."""


@dataclass(frozen=True, kw_only=True)
class WorkersStartEarly:
    """Workers start without a place in a round, so that the others do not have to wait for them."""

    kind: ClassVar[str] = "workers start early"
    round: int
    """The newest round."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WorkersParked:
    """The node's part of a round has ended. These workers wait for the next round, and the others have ended."""

    kind: ClassVar[str] = "workers parked"
    round: int
    reason: str
    ranks: tuple[int, ...]
    """Ranks of the workers that wait, in the round that has ended."""

    seconds: float | None = None
    """Seconds that the agent needed to park or stop them. None if they have stopped on request."""


@dataclass(frozen=True, kw_only=True)
class TrainingTotals:
    """The training of the node in a round, as its progress marks tell it. It comes at the end of the node's part.

    They are those of the worker with the most steps. Times are in seconds since the node's start.
    """

    kind: ClassVar[str] = "training totals"
    round: int
    rank: int
    steps: int
    """The number of calls of ``should_stop()``."""

    before: int | None = None
    """The number of training steps before the first call, in all rounds. None if the script does not tell it."""

    entered: float | None = None
    """The time at which the worker has begun its part in the round. None if the script has no function for that."""

    group: float | None = None
    """The time at which its process group was created. None if it has none."""

    restored: float | None = None
    """The time at which the worker had its state. None if it has told of no state."""

    source: str | None = None
    """The place of the state: ``kept`` in the process, ``peer``, ``memory`` of the own agent, ``buddy`` for that of
    another node, ``disk``, or ``beginning`` if there was no state yet. None if it is unknown."""

    first_step: float | None = None
    """The time of the first call of ``should_stop()``."""

    last_step: float | None = None
    done: float | None = None
    """The time at which the worker had no further step to make. None if it was not the end of its training."""

    samples: tuple[float, ...] = ()
    """Seconds from the first call to the calls with the numbers 2, 4, 8 and so on."""

    saved: float | None = None
    """The time of the newest save that is complete."""

    saved_step: int | None = None
    """The number of training steps in the state that was saved."""

    saves: int = 0
    """The number of saves, without one that has not ended."""

    saving: float = 0.0
    """Seconds in which the training has waited for saves."""

    compiling: float = 0.0
    other: float = 0.0
    """Seconds in which the worker has evaluated, or was in another phase without steps."""

    total: int | None = None
    """The number of steps of the training in all. None if the script does not tell it."""

    losses: tuple[tuple[float, ...], ...] = ()
    """Pairs of a step and a loss, evenly chosen among all that the script has told, and the newest one."""

    @property
    def marked(self) -> bool:
        """Whether a worker had written marks in the round."""
        return self != TrainingTotals(round=self.round, rank=self.rank, steps=0)


@dataclass(frozen=True, kw_only=True)
class WorkerInterrupted:
    """A collective of a worker has failed. The worker waits for the end of the round."""

    kind: ClassVar[str] = "worker interrupted"
    round: int
    rank: int
    error: str
    """The first line of the error's message."""


@dataclass(frozen=True, kw_only=True)
class StopRequested:
    """The agent has requested that its workers stop at the end of a step."""

    kind: ClassVar[str] = "stop requested"
    round: int
    seconds: float
    """Seconds after which the workers are stopped."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class WorkersPoll:
    """The workers of the node poll for stop requests: they have called ``should_stop()``. Logged once in each round."""

    kind: ClassVar[str] = "workers poll"
    round: int


@dataclass(frozen=True, kw_only=True)
class HardwareFound:
    """The hardware of the node has changed for the worse while its workers train."""

    kind: ClassVar[str] = "hardware found"
    check: str
    """The part of the hardware, such as ``GPUs``."""

    seen: str
    """The finding, as text for people."""

    severity: str
    """``note``, ``leave at the end of a step`` or ``leave at once``."""


@dataclass(frozen=True, kw_only=True)
class LeaseChanged:
    """The node has changed the duration of its lease, because ``rendezvous.lease`` is ``auto``."""

    kind: ClassVar[str] = "lease changed"
    seconds: float
    """The new duration."""

    late: float
    """The longest time in seconds by which a renewal has been late recently."""


@dataclass(frozen=True, kw_only=True)
class Fenced:
    """The lease of the node has expired, and the guard has killed the workers."""

    kind: ClassVar[str] = "fenced"
    round: int
    """The round of the workers that were killed."""


@dataclass(frozen=True, kw_only=True)
class StoreServed:
    """The node serves the store of a round. The first client has connected."""

    kind: ClassVar[str] = "store served"
    round: int
    port: int
    """TCP port of the store."""

    pid: int
    """Process id of the store server."""


@dataclass(frozen=True, kw_only=True)
class StoreLost:
    """The store server of a round has ended although the round continues."""

    kind: ClassVar[str] = "store lost"
    round: int
    exit_code: int
    """The exit status, or minus the number of the signal that ended the store server."""


@dataclass(frozen=True, kw_only=True)
class StoreFailed:
    """The run's directory, or the server of its backend, has failed. The agent tries again."""

    kind: ClassVar[str] = "store failed"
    error: str
    """The message of the error."""


@dataclass(frozen=True, kw_only=True)
class StacksWritten:
    """The agent has written the stacks of its workers, because a user has requested them."""

    kind: ClassVar[str] = "stacks written"
    request: int
    """The number of the request in the run."""

    round: int
    """The round of the workers; 0 if none was in a round."""

    path: str


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """The agent has executed or refused a request of a member of the run's group (``run.group``)."""

    kind: ClassVar[str] = "group request"
    author: str
    """The owner of the file of the request."""

    request: str
    """``checkpoint``, ``drain`` with nodes, or ``cancel``."""

    refusal: str | None = None
    """Why it was refused."""


@dataclass(frozen=True, kw_only=True)
class HangExamined:
    """The agent has examined a round that makes no progress: it has compared the reports of all agents."""

    kind: ClassVar[str] = "hang examined"
    round: int
    number: int
    """The number of the examination in the run."""

    verdict: str
    """The kind of the hang, such as ``behind``; see `hpcelastic.health.hangs.HangKind`."""

    ranks: tuple[int, ...]
    """The ranks that the others wait for. Empty if they are unknown."""

    certain: bool
    """Whether the reports prove the verdict."""

    text: str
    """The verdict in one line."""

    action: str
    """The action of the agents: ``none``, ``report``, ``restart`` or ``exclude``."""

    path: str
    """The directory with the reports and the stacks of all ranks."""


@dataclass(frozen=True, kw_only=True)
class StragglersFound:
    """The agent of rank 0 has compared the ranks of the round, and their stragglers have changed."""

    kind: ClassVar[str] = "stragglers found"

    round: int
    ranks: tuple[int, ...]
    """The ranks that the others wait for in each step. Empty if there are none any more."""

    text: str
    """The finding in one line."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved:
    """The agent has published a snapshot, which a worker saved in the background or which was in memory at the end."""

    kind: ClassVar[str] = "checkpoint saved"
    round: int
    """The round of the worker."""

    step: int
    """The number of training steps in the checkpoint."""

    path: str
    bytes: int
    seconds: float
    """Seconds from the first attempt to the end of the publication."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed:
    """The agent has given up to publish a checkpoint that a worker saved in the background. Training continues."""

    kind: ClassVar[str] = "checkpoint failed"
    round: int
    step: int
    error: str
    """The message of the last error."""


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """The agent has read that the run has ended."""

    kind: ClassVar[str] = "run ended"
    phase: Phase
    """The final phase."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class EventsDropped:
    """Events before this one are missing in the log, because the filesystem was too slow."""

    kind: ClassVar[str] = "events dropped"
    count: int
    """Number of missing events."""


@dataclass(frozen=True)
class UnknownEvent:
    """An event of a kind that this version does not know, or with fields that do not match its kind."""

    name: str
    """The kind of the event."""

    fields: Mapping[str, Any]
    """The fields as they are in JSON."""

    @property
    def kind(self) -> str:
        """The same as ``name``."""
        return self.name


KnownEvent: TypeAlias = Union[  # noqa: UP007  # one line for each kind
    AgentStarted,
    JobEligible,
    AgentRestarted,
    AgentEnded,
    StateChanged,
    Decided,
    PeerSuspected,
    ClockMeasured,
    SignalReceived,
    Leaving,
    WorkersStarted,
    WorkerEnded,
    TimerExpired,
    WorkersStopped,
    WorkersStartEarly,
    WorkersParked,
    TrainingTotals,
    WorkerInterrupted,
    StopRequested,
    WorkersPoll,
    StacksWritten,
    GroupRequest,
    HangExamined,
    StragglersFound,
    HardwareFound,
    Fenced,
    LeaseChanged,
    StoreServed,
    StoreLost,
    StoreFailed,
    CheckpointSaved,
    CheckpointFailed,
    RunEnded,
    EventsDropped,
]

Event: TypeAlias = KnownEvent | UnknownEvent

KINDS: Mapping[str, type[KnownEvent]] = {event.kind: event for event in get_args(KnownEvent)}
"""The class of each kind of event."""

_OLD_KINDS = {
    "state": StateChanged.kind,
    "trouble": StoreFailed.kind,
    "workers ask should_stop": WorkersPoll.kind,
    "workers asked to stop": StopRequested.kind,
}
"""Kinds as older versions wrote them."""


@dataclass(frozen=True)
class LoggedEvent:
    """An event with its time and node, as it is in an event log."""

    time: float
    """Seconds since the epoch, on the clock of the node."""

    node: str
    """Name of the node, without the incarnation."""

    event: Event
    up: float | None = None
    """Seconds since the node's start, when the event happened. None in the event logs of earlier versions."""

    line: int = field(default=0, compare=False)
    """The number of its line in the log, from 1; 0 if it is unknown."""


def to_fields(event: Event) -> dict[str, Any]:
    """Return the fields of ``event`` in their JSON form."""
    if isinstance(event, UnknownEvent):
        return dict(event.fields)
    return {name: value for name, value in encode(event).items() if value is not None}


def parse(kind: str, fields: Mapping[str, Any]) -> Event:
    """Return the event of ``kind`` with ``fields`` in their JSON form. Unknown additional fields are ignored.

    The result is an `UnknownEvent` if the kind is unknown, a field without a default is missing, or a field has a wrong
    type.
    """
    known = KINDS.get(_OLD_KINDS.get(kind, kind))
    if known is not None:
        try:
            return decode(known, dict(fields))
        except DecodeError:
            pass
    return UnknownEvent(kind, dict(fields))
