"""Events as text for people. Pure."""

from datetime import datetime

from hpcelastic.protocol.events import (
    AgentEnded,
    AgentRestarted,
    AgentStarted,
    CheckpointFailed,
    Decided,
    Event,
    Fenced,
    HangExamined,
    HardwareFound,
    JobEligible,
    Leaving,
    PeerSuspected,
    SignalReceived,
    StateChanged,
    StoreFailed,
    StragglersFound,
    UnknownEvent,
    WorkerEnded,
    WorkerInterrupted,
    WorkersStarted,
)
from hpcelastic.protocol.state import name_of


def describe(event: Event) -> str:
    """Return the text of an event that matters for the history of a run; empty for others."""
    match event:
        case StateChanged(phase=phase, round=round, reason=reason):
            return f"{phase.value:9} round {round}: {reason}"
        case AgentStarted():
            return "starts"
        case JobEligible(since=since):
            return f"its job could start from {datetime.fromtimestamp(since):%H:%M:%S} on"
        case AgentRestarted(reason=reason):
            return f"its agent died ({reason}) and was restarted"
        case WorkersStarted(pids=pids, world_size=world_size, round=round):
            return f"runs rank {', '.join(map(str, sorted(pids)))} of {world_size} in round {round}"
        case AgentEnded() | Fenced():
            return event.kind
        case WorkerEnded(rank=rank, exit_code=exit_code, mark=mark) if exit_code != 0:
            last = f", {event.mark_age:.1f} s after its last mark: {mark} {event.mark_value}" if mark else ""
            return f"rank {rank} ended with {exit_code}{last}"
        case HangExamined(round=round, text=text, action=action) if action != "none":
            return f"no progress in round {round}: {text} ({action})"
        case StragglersFound(round=round, text=text):
            return f"round {round}: {text}"
        case HardwareFound(check=check, seen=seen, severity=severity):
            return f"{check}: {seen} ({severity})"
        case CheckpointFailed(step=step, error=error):
            return f"the checkpoint of step {step} is not saved: {error}"
        case UnknownEvent(name=name, fields=fields):
            values = ", ".join(f"{field}: {value}" for field, value in fields.items())
            return name + (f" ({values})" if values else "")
    return ""


def describe_sign(event: Event) -> str:
    """Return the text of an event as a part of the chain that led to the end of a round; empty for others."""
    match event:
        case PeerSuspected(peer=peer, sign=sign):
            return f"{name_of(peer)}: {_SIGNS.get(sign, sign)}"
        case WorkerInterrupted(rank=rank, error=error):
            return f"rank {rank}: a collective has failed: {error}"
        case Fenced(round=round):
            return f"the lease has expired, and the workers of round {round} were killed"
        case Leaving(reason=reason):
            return f"leaves: {reason}"
        case SignalReceived(signal=signal):
            return f"the agent received {signal}"
        case StoreFailed(error=error):
            return f"the run's directory failed: {error}"
        case Decided(reason=reason, evidence=evidence):
            return f"decided: {reason}" + (f" ({evidence})" if evidence else "")
        case WorkerEnded() | HangExamined() | HardwareFound() | AgentRestarted():
            return describe(event)
    return ""


_SIGNS = {
    "link lost": "the connection to its agent has broken",
    "refused": "its kernel refuses connections, so its agent has no process left",
    "silent": "its heartbeats are missing",
}
