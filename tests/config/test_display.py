"""The output of ``show`` is a job file again, with origins."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from hpcelastic.config import JobConfig, encode, from_mapping, load, show
from tests.config.strategies import configs


def test_each_value_has_its_origin() -> None:
    Path("job.yaml").write_text("entrypoint:\n  script: train.py\n  args: [-n, 5]\nnodes: 2:4\nenvironment: {A: no}\n")
    shown = show(load("job.yaml", ["nodes.max=5"])).splitlines()
    assert len({line.index("#") for line in shown if "#" in line}) == 1
    assert [re.sub(r" +# ", "  # ", line) for line in shown[:25]] == [
        "run:",
        "  name: null  # default",
        "  directory: runs  # default",
        "  total_time: null  # default",
        "  code: []  # default",
        "  group: null  # default",
        "entrypoint:",
        "  script: train.py  # job.yaml:2",
        "  module: null  # default",
        "  function: null  # default",
        "  program: null  # default",
        '  args: [-n, "5"]  # job.yaml:3',
        "nodes: 2..5  # job.yaml:4, override 1",
        "workers:",
        "  per_node: auto  # default",
        "  role: default  # default",
        "  virtual_local_rank: false  # default",
        "  numa: none  # default",
        "  stop_grace: 15.0  # default",
        "  park_grace: 5.0  # default",
        "  forward_signals: []  # default",
        "  timers: false  # default",
        "  preload: [torch]  # default",
        "  learn_imports: true  # default",
        "rendezvous:",
    ]
    assert re.search(r'^  A: "no" +# job.yaml:5$', show(load("job.yaml")), re.MULTILINE)


def test_nodes_with_spares_have_a_line_each() -> None:
    Path("job.yaml").write_text("entrypoint: {script: train.py}\nnodes: {max: 4, spares: 1}\n")
    shown = [" ".join(line.split()) for line in show(load("job.yaml")).splitlines()]
    start = shown.index("nodes:")
    assert shown[start + 1 : start + 4] == ["min: 1 # default", "max: 4 # job.yaml:2", "spares: 1 # job.yaml:2"]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(configs)
def test_the_output_loads_to_the_same_configuration(config: JobConfig) -> None:
    shown = show(from_mapping(encode(config)))
    Path("shown.yaml").write_bytes(shown.encode())
    again = load("shown.yaml").config
    assert repr(again) == repr(config)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(configs)
def test_other_readers_of_yaml_see_the_same_text(config: JobConfig) -> None:
    shown = yaml.safe_load(show(from_mapping(encode(config))))
    assert (shown["environment"], shown["slurm"]["setup"]) == (config.environment, list(config.slurm.setup))
