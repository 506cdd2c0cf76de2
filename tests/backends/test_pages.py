"""docs/backends.md and docs/plugin.md: the examples that a reader would copy are valid."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.run import get_args_parser

from hpcelastic.api.launch import resolve
from hpcelastic.backends.connect import ENTRY_POINT_GROUP, backend_names
from hpcelastic.cli import agent
from hpcelastic.cli.parser import Parser
from hpcelastic.protocol.settings import TIMINGS
from hpcelastic.pytorch.torchrun import create_handler

DOCS = Path(__file__).parents[2] / "docs"
BACKENDS, PLUGIN = ((DOCS / f"{name}.md").read_text() for name in ("backends", "plugin"))


def block(page: str, language: str) -> str:
    """Return the only block of its language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return str(found)


def words(page: str, command: str) -> list[str]:
    line = block(page, "bash").replace("\\\n", " ").replace("$SLURM_JOB_ID", "7")
    return shlex.split(line.removeprefix(command))


def test_the_table_has_every_backend() -> None:
    named = re.findall(r"^\| `([\w-]+)` \|", BACKENDS.partition("\n## ")[0], re.MULTILINE)
    assert sorted(set(named)) == backend_names()
    assert f'[project.entry-points."{ENTRY_POINT_GROUP}"]' in block(BACKENDS, "toml")


def test_the_job_and_the_line_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    job = {"entrypoint": {"script": "train.py"}, **yaml.safe_load(block(BACKENDS, "yaml"))}
    assert resolve(job, []).rendezvous.endpoint == "etcd1:2379,etcd2:2379"
    secure = {"entrypoint": {"script": "train.py"}, **yaml.safe_load(block(BACKENDS, "yml"))}
    assert resolve(secure, []).rendezvous.tls == ("cacert", "cert", "key")
    parser = Parser()
    agent.add_arguments(parser)
    task = agent.task_of(parser.parse_args(words(BACKENDS, "hpcelastic agent")))
    assert (task.settings.rendezvous.backend, task.settings.rendezvous.endpoint) == ("c10d", "node1:29400")
    assert task.paths.root == Path("/scratch/me/runs/r")


def test_the_example_of_a_store_runs() -> None:
    names: dict[str, object] = {}
    exec(block(BACKENDS, "python"), names)
    assert names["epochs"] == 1


def test_torchrun_accepts_the_line(tmp_path: Path) -> None:
    args = get_args_parser().parse_args(words(PLUGIN, "torchrun"))
    assert (args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id) == ("hpcelastic", "/shared/runs", "7")
    create_handler(RendezvousParameters(args.rdzv_backend, str(tmp_path), args.rdzv_id, 2, 4))


def test_the_page_has_exactly_the_existing_options(tmp_path: Path) -> None:
    (listed,) = re.findall(r"^`--rdzv-conf` takes (.*?) \(seconds\), (.*?);", PLUGIN, re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(listed)))
    assert named == {*TIMINGS, "interface", "notifications", "ports"} - {
        "checkpoint_grace"
    }  # not available for torchrun's agents
    conf = dict.fromkeys(named & {*TIMINGS}, "5") | {"poll": "0.5", "notifications": "false", "interface": "lo"}
    create_handler(RendezvousParameters("hpcelastic", str(tmp_path), "r", 1, 1, **conf))


def test_the_example_of_torchs_own_protocol_runs(tmp_path: Path) -> None:
    code = block(PLUGIN, "python").replace("/shared/runs/mine", str(tmp_path))
    names = {"parameters": RendezvousParameters("hpcelastic-dynamic", "e", "mine", 1, 1, "localhost")}
    exec(code, names)
    assert names["handler"].get_backend() == "hpcelastic-dynamic"  # type: ignore[attr-defined]
