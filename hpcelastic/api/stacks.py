"""The stacks of all workers of a run, on request."""

import time
from collections.abc import Callable

from hpcelastic.agent.notifier import outside_notifier
from hpcelastic.api.prepare import whoami
from hpcelastic.api.sharing import require_owner
from hpcelastic.backends.connect import RunReader
from hpcelastic.errors import ConfigError, StoreError
from hpcelastic.protocol.decide import request_stacks
from hpcelastic.protocol.state import Phase
from hpcelastic.rendezvous.run import steer_run
from hpcelastic.storage import files

_POLL_INTERVAL = 0.05
_REPORT_INTERVAL = 3.0


def stacks(run: RunReader, timeout: float, report: Callable[[str], None] | None = None) -> dict[str, str]:
    """Return the stacks of the workers of the running round by node, as text. The round continues.

    If a round is forming, it waits for it. ``report`` is called with a line about a long wait. Raises ConfigError if no
    round runs within ``timeout`` seconds, and StoreError if a node has not written the stacks of its workers by then.
    The files of the others stay in the run's directory.
    """
    require_owner(run.paths, "request stacks")
    deadline, next_report = time.monotonic() + timeout, time.monotonic() + _REPORT_INTERVAL
    with outside_notifier(run.paths, whoami()) as notifier:
        while (state := steer_run(run.backend(), whoami(), request_stacks, notifier)).phase is not Phase.RUNNING:
            if state.phase.final or time.monotonic() >= deadline:
                raise ConfigError(f"{run.name}: no round runs ({state.reason}); try again when a round runs")
            if report is not None and time.monotonic() >= next_report:
                report(f"waiting for a round to form: {state.reason}")
                next_report += _REPORT_INTERVAL
            time.sleep(_POLL_INTERVAL)
    missing = {participant.name: run.paths.stacks(state.stacks, participant.name) for participant in state.participants}
    directory, found = run.paths.stacks(state.stacks, "").parent, dict[str, str]()
    while missing:
        present = set(files.names(directory)) if files.exists(directory) else set()
        for node, path in list(missing.items()):
            if path.name in present and (content := files.read(path)) is not None:
                found[node] = content.decode(errors="replace")
                del missing[node]
        if missing and time.monotonic() >= deadline:
            verb = "has not written the stacks of its" if len(missing) == 1 else "have not written the stacks of their"
            others = f"those of {len(found)} other node{'s' * (len(found) != 1)} are in {directory}"
            raise StoreError(f"{run.name}: {', '.join(missing)} {verb} workers within {timeout:g} s; {others}")
        if missing and report is not None and time.monotonic() >= next_report:
            report(f"waiting for the stacks of {', '.join(missing)}")
            next_report += _REPORT_INTERVAL
        time.sleep(_POLL_INTERVAL if missing else 0.0)
    return {participant.name: found[participant.name] for participant in state.participants}
