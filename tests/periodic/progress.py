"""A plugin of pytest that writes the result of each test at once: ``pytest -p tests.periodic.progress``.

A check that is ended for its budget would otherwise not say which tests have failed or were slow. The environment
variable HPCELASTIC_RESULTS names the file.
"""

import os
from typing import TextIO

import pytest

RESULTS = "HPCELASTIC_RESULTS"


class Progress:
    """Writes one line for each test to ``file``, and the report of each failure."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the process that the workers report to, after each phase of a test."""
        seconds = self._seconds.get(report.nodeid, 0.0) + report.duration
        self._seconds[report.nodeid] = seconds
        if report.failed:
            self._write(f"FAILED in {report.when}: {report.nodeid}\n{report.longreprtext}")
        if report.when == "teardown":
            self._write(f"{self._seconds.pop(report.nodeid):8.1f} s  {report.nodeid}")

    def _write(self, line: str) -> None:
        print(line, file=self._file, flush=True)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin, in the process that the workers report to only."""
    if not hasattr(config, "workerinput"):
        file = open(os.environ[RESULTS], "w")  # noqa: SIM115  # closed at the end of the session
        config.add_cleanup(file.close)
        config.pluginmanager.register(Progress(file))
