"""The end of the workers of a node, as an agent in this process reports it."""

from pathlib import Path

import pytest

from hpcelastic.agent.batch_system import NoBatchSystem
from hpcelastic.errors import RunFailed
from tests.agent.test_signals import SingleAgent

KILLED = """
import os, signal, time
from pathlib import Path
here = Path(os.environ["HPCELASTIC_RUN_DIR"])
if os.environ["RANK"] == "0":
    (here / "draft").write_text(str(os.getpid()))
    (here / "draft").rename(here / "pid")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
while not (here / "pid").exists():
    time.sleep(0.01)
while Path("/proc", (here / "pid").read_text()).exists():  # the agent has not reaped it
    time.sleep(0.01)
"""


def test_a_run_fails_if_a_signal_has_ended_a_worker_before_the_others_succeed(tmp_path: Path) -> None:
    single = SingleAgent(tmp_path, NoBatchSystem(1.0), script=KILLED, workers=2)
    with pytest.raises(RunFailed) as error:
        single.agent.run()
    (failure,) = error.value.failures
    assert (failure.rank, failure.exit_code) == (0, -15)
