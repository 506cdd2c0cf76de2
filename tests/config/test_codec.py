"""The configuration in a run's directory is written and read completely, without pydantic and yaml."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from hpcelastic.agent.settings import Entrypoint
from hpcelastic.config import JobConfig, decode, encode
from hpcelastic.errors import ConfigError
from tests.config.strategies import configs

CONFIG = JobConfig(entrypoint=Entrypoint(script="train.py"))
PREFIX = "the run's configuration is not valid: "
SUFFIX = "; the file is damaged, or another version of hpcelastic wrote it; submit the run again"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(configs)
def test_decode_inverts_encode_through_json(config: JobConfig) -> None:
    assert repr(decode(json.loads(json.dumps(encode(config))))) == repr(config)


def test_fields_of_a_newer_version_are_ignored() -> None:
    data = encode(CONFIG)
    assert decode({**data, "new": 1, "logs": {**data["logs"], "new": 2}}) == CONFIG


def test_a_field_with_its_old_name_is_accepted() -> None:
    data = encode(CONFIG)
    data["network"] = {"interface": "ib0", "ports": None, "doorbell": False, "snapshot_rate": 8}
    network = decode(data).network
    assert (network.interface, network.notifications) == ("ib0", False)


def changed(group: str, **values: Any) -> dict[str, Any]:
    data = encode(CONFIG)
    return {**data, group: {**data[group], **values}}


def without(group: str, key: str) -> dict[str, Any]:
    data = encode(CONFIG)
    del data[group][key]
    return data


WRONG = {
    "not a mapping": ([], "JobConfig is not an object"),
    "group missing": ({key: item for key, item in encode(CONFIG).items() if key != "nodes"}, "nodes is missing"),
    "field missing": (without("rendezvous", "lease"), "rendezvous.lease is missing"),
    "group of another type": ({**encode(CONFIG), "nodes": 3}, "nodes is not an object"),
    "list of another type": (changed("slurm", setup="a"), "slurm.setup is 'a', not list"),
    "value out of range": (changed("nodes", min=0), "nodes.min is 0; a round needs at least 1 node"),
    "value of another type": (changed("restarts", max="3"), "restarts.max is '3', not int"),
}


@pytest.mark.parametrize(("data", "message"), WRONG.values(), ids=WRONG)
def test_an_invalid_configuration_is_refused(data: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        decode(data)
    assert str(error.value) == PREFIX + message + SUFFIX


def test_an_agent_reads_it_without_pydantic_and_yaml() -> None:
    code = "import sys, hpcelastic.config.codec; print({'pydantic', 'yaml', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
