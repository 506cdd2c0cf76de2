from types import SimpleNamespace
from typing import Any

import pytest

from hpcelastic.agent.lease_monitor import LeaseMonitor
from hpcelastic.protocol.settings import RendezvousSettings


def test_a_change_of_the_duration_whose_report_has_failed_is_reported_once() -> None:
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        raise OSError("no space left on device")

    settings = RendezvousSettings()
    monitor = LeaseMonitor(lambda _: None, settings, lambda _: None, report)
    longer: Any = SimpleNamespace(seconds=2 * settings.first_lease, lateness=1.0)
    with pytest.raises(OSError, match="no space"):
        monitor.renewed(longer)
    monitor.renewed(longer)
    assert len(lines) == 1
