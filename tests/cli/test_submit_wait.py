"""The exit status of ``hpcelastic submit --wait``. The run has ended already."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcelastic.cli import main, submit


@pytest.mark.parametrize(
    ("phase", "crash_loop", "exit_status"),
    [
        pytest.param("succeeded", False, 0, id="succeeded"),
        pytest.param("failed", False, 1, id="failed"),
        pytest.param("cancelled", False, 1, id="cancelled"),
        pytest.param("failed", True, 4, id="a crash loop"),
    ],
)
def test_the_exit_status_tells_how_the_run_has_ended(
    phase: str,
    crash_loop: bool,
    exit_status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = SimpleNamespace(name="r", phase=phase, crash_loop=crash_loop, reason="for the test", jobs=("7",))
    run = SimpleNamespace(name="r", directory=tmp_path, status=lambda: status, wait=lambda: status)
    monkeypatch.setattr(submit, "start", lambda *_, **__: run)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("job.yaml").write_text("entrypoint: {script: train.py}\n")
    assert main(["submit", "job.yaml", "--wait"]) == exit_status
    assert f"r has {phase}: for the test" in capsys.readouterr().out
