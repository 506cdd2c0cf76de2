"""docs/torchrun.md: each option of torchrun's parser is in the table and is treated as the table says."""

from pathlib import Path

import pytest

from hpcelastic.agent.member import NodeIdentity
from hpcelastic.bootstrap import Task
from hpcelastic.cli import agent, torchrun
from hpcelastic.cli.parser import Parser
from hpcelastic.config.keys import kind_at, split
from hpcelastic.errors import ConfigError

run = pytest.importorskip("torch.distributed.run")
argparse_util = pytest.importorskip("torch.distributed.argparse_util")

PAGE = Path(__file__).parents[2] / "docs" / "torchrun.md"
ROWS = {
    cells[0].strip(" `"): (cells[1].strip(), cells[3].strip(" `"))
    for line in PAGE.read_text().splitlines()
    if line.startswith("| `--") and len(cells := line.strip("|").split("|")) == 4
}
"""The treatment of each option, and its key in a job file."""

ACTIONS = [action for action in run.get_args_parser()._actions if action.option_strings and action.dest != "help"]
NAMED = {max(action.option_strings, key=len).replace("_", "-"): action for action in ACTIONS}

FROM_ENVIRONMENT = [o for o, a in NAMED.items() if isinstance(a, argparse_util.env | argparse_util.check_env)]

VALUES = {
    "--nnodes": "1:2",
    "--nproc-per-node": "2",
    "--rdzv-backend": "c10d",
    "--rdzv-endpoint": "./others",
    "--rdzv-id": "other",
    "--rdzv-conf": "join_timeout=5",
    "--max-restarts": "2",
    "--monitor-interval": "0.5",
    "--start-method": "forkserver",
    "--event-log-handler": "console",
    "--role": "trainer",
    "--log-dir": "elsewhere",
    "--redirects": "0:1,1:3",
    "--tee": "3",
    "--local-ranks-filter": "0,1",
    "--duplicate-stdout-filters": "loss,a,,b",
    "--duplicate-stderr-filters": "warn",
    "--node-rank": "3",
    "--master-addr": "node1",
    "--master-port": "29501",
    "--local-addr": "10.0.0.1",
    "--logs-specs": "mine",
    "--numa-binding": "core-complex",
    "--signals-to-handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
    "--shutdown-timeout": "7",
}
"""The value for each option that takes one."""

NEEDED = {"--rdzv-endpoint": "./runs", "--rdzv-id": "r"}

PROGRAMS = {"--module": "json.tool", "--no-python": "true"}
"""The program for each option that needs another one than the script."""

BESIDE = {
    "--rdzv-backend": ["--rdzv-backend=etcd", "--rdzv-endpoint=n1:29400"],
    "--master-addr": ["--rdzv-backend=static", "--rdzv-endpoint="],
    "--master-port": ["--rdzv-backend=static", "--rdzv-endpoint=", "--master-addr=n1"],
}
"""Options that make the endpoint unnecessary."""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "json.tool", "true"):  # the same arguments for all
        Path(name).touch()
    monkeypatch.setattr(agent.secrets, "token_hex", lambda count: "0" * 2 * count)
    return tmp_path


def understood(words: list[str], program: str, *, without: str = "") -> tuple[Task, NodeIdentity, str | None]:
    """Return the parsed command line with all that every line needs, except the option ``without``.

    The last value is the handler of torch's events.
    """
    needed = [f"{option}={value}" for option, value in NEEDED.items() if option != without]
    parser = Parser()
    agent.add_arguments(parser)
    args = parser.parse_args([*needed, *words, program, "--lr", "1"])
    return agent.task_of(args), agent.place_of_flags(args), torchrun.event_handler(args)


def words_for(option: str, spelling: str) -> list[str]:
    return [spelling, *([VALUES[option]] if takes_value(option) else [])]


def takes_value(option: str) -> bool:
    return NAMED[option].nargs != 0


def test_the_table_has_every_option_and_no_other() -> None:
    assert list(ROWS) == list(NAMED)
    assert {treatment for treatment, _ in ROWS.values()} <= {"same", "better", "not needed", "refused"}


def test_torchrun_accepts_every_value() -> None:
    assert VALUES.keys() == set(filter(takes_value, NAMED))
    for option in NAMED:
        run.get_args_parser().parse_args([*words_for(option, option), "train.py"])


@pytest.mark.parametrize("option", NAMED)
def test_an_option_is_treated_as_the_table_says(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, (treatment, _) = PROGRAMS.get(option, "train.py"), ROWS[option]
    for spelling in NAMED[option].option_strings:
        if treatment == "refused":
            with pytest.raises(ConfigError, match=f"^{option} "):
                understood(words_for(option, spelling), program)
            continue
        beside = BESIDE.get(option, [])
        before = understood(beside, program)
        capsys.readouterr()
        after = understood([*beside, *words_for(option, spelling)], program)
        output = capsys.readouterr().err
        if treatment == "not needed":
            assert after == before
            assert output.startswith(f"hpcelastic agent: {option} is not needed: ")
        else:
            assert after != before
            assert "not needed" not in output


@pytest.mark.parametrize("option", FROM_ENVIRONMENT)
def test_its_default_may_be_in_the_environment(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = PROGRAMS.get(option, "train.py")
    given = understood(words_for(option, option), program)
    monkeypatch.setenv(f"PET_{NAMED[option].dest.upper()}", VALUES.get(option, "1"))
    assert understood([], program, without=option) == given


def test_the_keys_in_the_table_exist() -> None:
    for _, key in ROWS.values():
        assert not key or kind_at(split(key)) is not None, key


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="no option"),
        pytest.param(["--nproc-per-node=2"], id="workers"),
        pytest.param(["--master-port=29501"], id="a port"),
        pytest.param(["--rdzv-backend=c10d"], id="a backend without an endpoint"),
        pytest.param(["--rdzv-backend=static"], id="torchrun's default"),
    ],
)
def test_a_line_for_one_node_needs_no_endpoint(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(NEEDED, "--rdzv-endpoint", "")
    task, *_ = understood(words, "train.py")
    assert (task.settings.rendezvous.backend, task.settings.nodes.max) == ("file", 1)
    assert f"this run is stored in {task.paths.root.parent}" in capsys.readouterr().err


@pytest.mark.parametrize("backend", [[], ["--rdzv-backend=static"]], ids=["default backend", "explicit backend"])
def test_the_master_may_replace_the_endpoint(backend: list[str], directory: Path) -> None:
    words = ["--nnodes=2", "--rdzv-endpoint=", *backend, "--node-rank=1", "--master-addr=n1", "--master-port=29501"]
    task, place, _ = understood(words, "train.py")
    rendezvous = task.settings.rendezvous
    assert (rendezvous.backend, rendezvous.endpoint, place.order) == ("static", "n1:29501", 1)
    assert task.paths.root == directory / "runs" / "r"


def test_the_address_of_the_master_may_be_that_of_ipv6() -> None:
    words = ["--nnodes=2", "--rdzv-endpoint=", "--node-rank=1", "--master-addr=fd00::1", "--master-port=7777"]
    task, *_ = understood(words, "train.py")
    assert task.settings.rendezvous.endpoint == "[fd00::1]:7777"


def test_a_port_of_a_missing_master_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--master-port is the port of --master-addr, which is missing"):
        understood(["--nnodes=2", "--rdzv-endpoint=", "--rdzv-backend=static", "--master-port=29501"], "train.py")


def test_a_host_of_a_server_needs_no_port(directory: Path) -> None:
    task, *_ = understood(["--rdzv-backend=c10d", "--rdzv-endpoint=n1"], "train.py")
    assert (task.settings.rendezvous.backend, task.settings.rendezvous.endpoint) == ("c10d", "n1")


def test_an_option_of_a_newer_torchrun_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    before = understood([], "train.py")
    assert understood(["--exit-barrier-timeout", "600"], "train.py") == before
    assert capsys.readouterr().err.startswith("hpcelastic agent: --exit-barrier-timeout is not needed: ")


@pytest.mark.parametrize("spelling", ["--use-env", "--use_env"])
def test_a_line_of_torch_distributed_launch_is_accepted(spelling: str, capsys: pytest.CaptureFixture[str]) -> None:
    launch = pytest.importorskip("torch.distributed.launch")
    assert launch.parse_args([spelling, "train.py"]).use_env
    before = understood([], "train.py")
    assert understood([spelling], "train.py") == before
    assert before[0].agent.entrypoint.args == ("--lr", "1")  # no --local-rank
    assert capsys.readouterr().err == ""


def test_the_default_handler_of_events_needs_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert understood(["--event-log-handler=null"], "train.py") == understood([], "train.py")
    assert capsys.readouterr().err == ""


def test_the_monitor_interval_is_used_for_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    understood(["--event-log-handler=console", "--monitor-interval=5"], "train.py")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "seconds"), [([], 0.1), (["--monitor-interval=5"], 5.0), (["--monitor-interval=-1"], 0.01)]
)
def test_metrics_report_healthy_workers_at_this_interval(words: list[str], seconds: float) -> None:
    parser = Parser()
    agent.add_arguments(parser)
    assert torchrun.monitor_interval(parser.parse_args(words)) == seconds


def test_a_class_of_log_files_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(ConfigError) as caught:
        understood(["--logs-specs=mine"], "train.py")
    for remedy in ("--log-dir", "--redirects", "--tee", "torchrun --rdzv-backend=hpcelastic"):
        assert remedy in str(caught.value)
    assert understood(["--logs-specs=default"], "train.py") == understood([], "train.py")


def test_a_port_for_health_checks_is_not_served(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = understood([], "train.py")
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "8080")
    assert understood([], "train.py") == before
    assert capsys.readouterr().err.startswith("hpcelastic agent: TORCHELASTIC_HEALTH_CHECK_PORT is ignored: ")


def test_the_old_name_of_an_option_is_accepted_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    new, *_ = understood(["--no-notifications"], "train.py")
    assert not new.agent.network.notifications
    capsys.readouterr()
    old, *_ = understood(["--no-doorbell"], "train.py")
    assert old == new
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(": --no-doorbell is the old name of --no-notifications; write --no-notifications instead")
    default, *_ = understood([], "train.py")
    assert default.agent.network.notifications


def test_the_old_name_of_an_option_is_not_in_the_help() -> None:
    parser = Parser()
    agent.add_arguments(parser)
    text = parser.format_help()
    assert "--no-notifications" in text
    assert "doorbell" not in text


def test_the_old_and_the_new_name_of_an_option_together_are_an_error() -> None:
    with pytest.raises(ConfigError, match="not allowed with argument"):
        understood(["--no-notifications", "--no-doorbell"], "train.py")
