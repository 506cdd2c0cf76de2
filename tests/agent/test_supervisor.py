"""The end of the workers of a node, as an agent in this process reports it."""

from pathlib import Path

import pytest

from hpcelastic.agent.batch_system import NoBatchSystem
from hpcelastic.agent.supervisor import Supervisor
from hpcelastic.agent.worker_channels import WorkerChannels
from hpcelastic.errors import ConfigError, RunFailed
from hpcelastic.protocol.decide import checkpoint
from hpcelastic.protocol.events import AgentEnded
from hpcelastic.protocol.state import NodeState
from hpcelastic.rendezvous.run import steer_run
from hpcelastic.storage.events import read_logs
from tests.agent.processes import TIMEOUT
from tests.agent.test_signals import SingleAgent
from tests.agent.test_workers import gone

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

PARKS = """
import os
from hpcelastic.ipc.worker_channel import Park, Parked, WorkerChannel
here, round = os.environ["HPCELASTIC_RUN_DIR"], os.environ["HPCELASTIC_ROUND"]
channel = WorkerChannel.connect(os.environ["HPCELASTIC_WORKER_CHANNEL"])
open(f"{here}/{round}.up", "w").close()
while round == "1" and (received := channel.receive(wait=True)) is not None:
    if isinstance(received[0], Park):
        channel.send(Parked(1))
    else:
        open(f"{here}/resumed", "w").close()
        break
"""

WAITS = """
import os, time
here = os.environ["HPCELASTIC_RUN_DIR"] + "/1."
open(here + "draft", "w").write(str(os.getpid()))
os.rename(here + "draft", here + "up")
time.sleep(600)
"""


def test_a_run_fails_if_a_signal_has_ended_a_worker_before_the_others_succeed(tmp_path: Path) -> None:
    single = SingleAgent(tmp_path, NoBatchSystem(1.0), script=KILLED, workers=2)
    with pytest.raises(RunFailed) as error:
        single.agent.run()
    (failure,) = error.value.failures
    assert (failure.rank, failure.exit_code) == (0, -15)


def test_a_worker_whose_connection_is_accepted_at_the_end_of_the_round_is_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = SingleAgent(tmp_path, NoBatchSystem(1.0), script=PARKS)
    accept = WorkerChannels.accept

    def accept_late(channels: WorkerChannels) -> None:
        supervisor = single.agent._supervisor
        if supervisor is not None and supervisor._stopping is not None:
            accept(channels)

    monkeypatch.setattr(WorkerChannels, "accept", accept_late)
    assert single.run(lambda: steer_run(single.backend, "n9@0-ab", checkpoint)) == 0
    assert (tmp_path / "resumed").exists()


def test_an_agent_that_cannot_stop_its_workers_does_not_publish_that_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(supervisor: Supervisor, why: str) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(Supervisor, "stop", stop)
    single = SingleAgent(tmp_path, NoBatchSystem(1.0), script=WAITS)
    with pytest.raises(OSError, match="too many open files"):
        single.run(lambda: single.agent._inbox.deliver(ConfigError("an error of the agent")))
    assert single.agent.member.node_state is NodeState.RUNNING
    (log,) = read_logs(single.paths.events).values()
    assert log[-1].event == AgentEnded(), "it finishes its other work"
    assert gone(int((tmp_path / "1.up").read_text())), "the guard has killed it"
    renewals = single.agent._session._rendezvous._thread
    renewals.join(TIMEOUT)
    assert not renewals.is_alive()
