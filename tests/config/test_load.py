"""The meaning of a job file: short forms, special values of YAML, overrides and origins."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hpcelastic.agent.settings import AgentSettings, Entrypoint
from hpcelastic.config import JobConfig, default_name, from_mapping, load, node_range, overrides_from_keywords
from hpcelastic.config.overrides import Override
from hpcelastic.errors import ConfigError
from hpcelastic.protocol.settings import NodeRange, Settings

DEFAULTS = JobConfig(entrypoint=Entrypoint(script="train.py"))


def loaded(text: str, overrides: list[Override] | None = None) -> JobConfig:
    Path("job.yaml").write_text("entrypoint: {script: train.py}\n" + text)
    return load("job.yaml", overrides or []).config


def test_every_key_except_the_entry_point_has_a_default() -> None:
    assert loaded("") == DEFAULTS


def test_empty_groups_and_lists_count_as_missing() -> None:
    assert loaded("slurm:\nenvironment:\nnodes:\nworkers:\n  forward_signals:\n") == DEFAULTS


NODES = {
    "number": ("3", NodeRange(3, 3)),
    "range": ("2..4", NodeRange(2, 4)),
    "as torchrun, which YAML 1.1 reads as 124": ("2:4", NodeRange(2, 4)),
    "quoted": ("'2:4'", NodeRange(2, 4)),
    "mapping": ("{min: 2, max: 4}", NodeRange(2, 4)),
    "spares": ("{min: 2, max: 4, spares: 1}", NodeRange(2, 4, spares=1)),
}


@pytest.mark.parametrize(("text", "nodes"), NODES.values(), ids=NODES)
def test_nodes_have_short_forms(text: str, nodes: NodeRange) -> None:
    assert loaded(f"nodes: {text}\n").nodes == nodes


@pytest.mark.parametrize(
    ("text", "nodes"), [("3", NodeRange(3, 3)), ("2:4", NodeRange(2, 4)), (" 2..4 ", NodeRange(2, 4))]
)
def test_node_range_reads_the_same_forms(text: str, nodes: NodeRange) -> None:
    assert node_range(text) == nodes


@pytest.mark.parametrize("text", ["", "a", "2..", "4..2", "-1", "2...4", "0"])
def test_node_range_refuses_the_rest(text: str) -> None:
    with pytest.raises(ValueError, match="nodes"):
        node_range(text)


@pytest.mark.parametrize("text", ["1:30:00", "90", "1-00:00:00", "00:10", "2-12", "UNLIMITED"])
def test_a_time_keeps_its_text(text: str) -> None:
    assert loaded(f"slurm: {{time: {text}}}\n").slurm.time == text


@pytest.mark.parametrize(
    "text", ["1.10", "no", "on", "0123", "0x1F", "1e5", "2024-01-01", "true", "False", "1_000", "7"]
)
def test_variables_and_arguments_keep_their_text(text: str) -> None:
    assert loaded(f"environment: {{A: {text}}}\n").environment == {"A": text}
    Path("job.yaml").write_text(f"entrypoint: {{module: a, args: [{text}]}}\n")
    assert load("job.yaml").config.entrypoint.args == (text,)


def test_arguments_of_a_function_keep_their_types() -> None:
    Path("job.yaml").write_text("entrypoint: {function: 'a:b', args: [5, 1.5, true, '5', no, 1e3]}\n")
    args = load("job.yaml").config.entrypoint.args
    assert [(type(arg), arg) for arg in args] == [
        (int, 5),
        (float, 1.5),
        (bool, True),
        (str, "5"),
        (str, "no"),
        (float, 1000.0),
    ]


def test_a_whole_number_is_a_duration() -> None:
    lease = loaded("rendezvous: {lease: 5}\n").rendezvous.lease
    assert (type(lease), lease) == (float, 5.0)


def test_anchors_may_be_used() -> None:
    assert loaded("environment: {A: &a x, B: *a}\n").environment == {"A": "x", "B": "x"}


def test_the_settings_of_each_layer() -> None:
    config = loaded("nodes: 2\nenvironment: {A: b}\n")
    assert config.protocol_settings == Settings(nodes=NodeRange(2, 2))
    assert config.agent_settings == AgentSettings(Entrypoint(script="train.py"), environment={"A": "b"})


OVERRIDES: dict[str, tuple[list[Override], str, Any]] = {
    "value": (["rendezvous.lease=5"], "rendezvous.lease", 5.0),
    "nodes": (["nodes=2..3"], "nodes", NodeRange(2, 3)),
    "one end of nodes": (["nodes.max=9"], "nodes", NodeRange(1, 9)),
    "nodes, then one end": (["nodes=2:3", "nodes.max=9"], "nodes", NodeRange(2, 9)),
    "spares of a short form": (["nodes=2..3", "nodes.spares=1"], "nodes", NodeRange(2, 3, 1)),
    "free key": (["slurm.options.mail-type=END"], "slurm.options", {"mail-type": "END"}),
    "list": (["entrypoint.args=[--epochs, 3]"], "entrypoint.args", ("--epochs", "3")),
    "the last wins": (["restarts.max=5", "restarts.max=7"], "restarts.max", 7),
    "whole group": (["environment={B: 2}"], "environment", {"B": "2"}),
    "value with an equals sign": (["environment.B=a=b"], "environment", {"A": "1", "B": "a=b"}),
    "time": (["slurm.time=1:30:00"], "slurm.time", "1:30:00"),
    "null": (["run.name=null"], "run.name", None),
    "pair": ([("slurm.setup", ("a", "b"))], "slurm.setup", ("a", "b")),
    "path": ([("run.directory", Path("/runs"))], "run.directory", "/runs"),
}


@pytest.mark.parametrize(("overrides", "key", "value"), OVERRIDES.values(), ids=OVERRIDES)
def test_an_override_sets_one_key(overrides: list[Override], key: str, value: Any) -> None:
    found: Any = loaded("nodes: 1..3\nenvironment: {A: 1}\nrun: {name: a}\n", overrides)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_keywords_are_overrides() -> None:
    overrides = overrides_from_keywords({"nodes": "2..3", "slurm__partition": "a"})
    assert overrides == [("nodes", "2..3"), ("slurm.partition", "a")]
    config = from_mapping({"entrypoint": {"module": "a"}}, overrides).config
    assert (config.nodes, config.slurm.partition) == (NodeRange(2, 3), "a")


def test_a_mapping_has_the_meaning_of_the_same_file() -> None:
    mapping = {
        "entrypoint": {"script": Path("train.py"), "args": ("--epochs", 5)},
        "nodes": "2..4",
        "environment": {"A": 1, "B": True},
    }
    assert from_mapping(mapping).config == JobConfig(
        entrypoint=Entrypoint(script="train.py", args=("--epochs", "5")),
        nodes=NodeRange(2, 4),
        environment={"A": "1", "B": "true"},
    )


def test_every_value_has_an_origin() -> None:
    Path("job.yaml").write_text(
        "entrypoint:\n  script: train.py\n  args:\n    - a\nnodes: 2..4\nenvironment:\n  A: 1\nslurm: {time: 90}\n"
    )
    origins = load("job.yaml", ["rendezvous.lease=5", "nodes.max=5", "slurm.options={mail-type: END}"]).origins
    assert {key: origin for key, origin in origins.items() if origin != "default"} == {
        "entrypoint.script": "job.yaml:2",
        "entrypoint.args": "job.yaml:3",
        "nodes.min": "job.yaml:5",
        "nodes.max": "override 2",
        "environment.A": "job.yaml:7",
        "slurm.time": "job.yaml:8",
        "rendezvous.lease": "override 1",
        "slurm.options.mail-type": "override 3",
    }
    assert origins["run.name"] == origins["slurm.setup"] == origins["logs.tee"] == "default"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("configs/digits.yaml", "digits-20240509-130702"),
        ("my job (2).yaml", "my-job-2-20240509-130702"),
        (".yaml", "yaml-20240509-130702"),
        ("_", "run-20240509-130702"),
    ],
)
def test_the_default_name_has_the_name_of_the_file_and_the_time(path: str, name: str) -> None:
    assert default_name(path, datetime(2024, 5, 9, 13, 7, 2)) == name
    assert from_mapping({"entrypoint": {"module": "a"}, "run": {"name": name}}).config.run.name == name


OLD_NAME = "network.doorbell: is the old name of network.notifications; write network.notifications instead"
BOTH_NAMES = "network.doorbell: is the old name of network.notifications, which is given too; remove network.doorbell"

OLD_NAMES: dict[str, tuple[str, list[Override], list[str]]] = {
    "file": ("network: {doorbell: false}\n", [], [f"job.yaml:2: {OLD_NAME}"]),
    "override": (
        "network: {notifications: true}\n",
        ["network.doorbell=false"],
        [f"override 1: network.doorbell=false: {OLD_NAME.partition(': ')[2]}"],
    ),
    "group in an override": (
        "",
        ["network={doorbell: false}"],
        [f"override 1: network={{doorbell: false}}: {OLD_NAME}"],
    ),
    "keyword": (
        "",
        [("network.doorbell", False)],
        [f"override 1: network.doorbell=False: {OLD_NAME.partition(': ')[2]}"],
    ),
    "override of a file with the old name": (
        "network: {doorbell: true}\n",
        ["network.notifications=false"],
        [f"job.yaml:2: {OLD_NAME}"],
    ),
    "new name": ("network: {notifications: false}\n", [], []),
}


@pytest.mark.parametrize(("text", "overrides", "warnings"), OLD_NAMES.values(), ids=OLD_NAMES)
def test_an_old_name_of_a_key_is_accepted_with_a_warning(
    text: str, overrides: list[Override], warnings: list[str]
) -> None:
    Path("job.yaml").write_text("entrypoint: {script: train.py}\n" + text)
    resolved = load("job.yaml", overrides)
    assert resolved.config.network.notifications is False
    assert list(resolved.warnings) == warnings


def test_the_value_of_an_old_name_keeps_its_origin() -> None:
    Path("job.yaml").write_text("entrypoint: {script: train.py}\nnetwork:\n  doorbell: false\n")
    assert load("job.yaml").origins["network.notifications"] == "job.yaml:3"


def test_a_mapping_may_have_an_old_name() -> None:
    resolved = from_mapping({"entrypoint": {"module": "a"}, "network": {"doorbell": False}})
    assert resolved.config.network.notifications is False
    assert resolved.warnings == (OLD_NAME,)


BOTH: dict[str, tuple[str, list[Override], str]] = {
    "file": ("network: {doorbell: false, notifications: false}\n", [], f"job.yaml:2: {BOTH_NAMES}"),
    "overrides": ("", ["network.notifications=true", "network.doorbell=false"], f"overrides: {BOTH_NAMES}"),
    "one override": (
        "",
        ["network={doorbell: false, notifications: true}"],
        f"override 1: network={{doorbell: false, notifications: true}}: {BOTH_NAMES}",
    ),
}


@pytest.mark.parametrize(("text", "overrides", "message"), BOTH.values(), ids=BOTH)
def test_the_old_and_the_new_name_of_a_key_together_are_an_error(
    text: str, overrides: list[Override], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(text, overrides)
    assert str(error.value) == message
