"""The published JSON Schema accepts exactly what the loader accepts."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import hpcelastic
from hpcelastic.config import load
from hpcelastic.config.files import script_problem
from hpcelastic.config.keys import ALIASES, every_key, kind_at, split
from hpcelastic.config.schema import job_schema
from hpcelastic.config.yaml_reader import JobLoader

PACKAGE = Path(hpcelastic.__file__).parent
SHIPPED = json.loads((PACKAGE / "config/job.schema.json").read_text())
JOBS = sorted((PACKAGE.parent / "configs").glob("*.yaml"))


def accepts(job: Any) -> bool:
    return bool(Draft202012Validator(SHIPPED).is_valid(job))


def test_the_shipped_schema_is_the_generated_one() -> None:
    Draft202012Validator.check_schema(SHIPPED)
    assert job_schema() == SHIPPED, "run: python -m hpcelastic.config.schema > hpcelastic/config/job.schema.json"


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_example_jobs_match_the_schema_and_load(path: Path) -> None:
    assert accepts(yaml.load(path.read_text(), JobLoader))  # noqa: S506 - a safe loader
    assert path.read_text().startswith("# yaml-language-server: $schema=../hpcelastic/config/job.schema.json\n")
    is_minimal = path.name == "minimal.yaml"  # its script belongs to the reader
    load(path, directory=None if is_minimal else PACKAGE.parent)


GOOD = {
    "number of nodes": {"nodes": 3},
    "range of nodes": {"nodes": "2..4"},
    "range as torchrun's": {"nodes": "2:4"},
    "mapping of nodes": {"nodes": {"min": 2, "max": 4}},
    "number for text": {"slurm": {"time": 90, "account": 12}},
    "variables": {"environment": {"A": 1, "B": True, "C": "c", "D": 1.5}},
    "streams by local rank": {"logs": {"redirect": {"0": "out"}, "tee": "both"}},
    "options": {"slurm": {"options": {"mail-type": "END", "exclusive": True, "nice": 5}}},
}


@pytest.mark.parametrize("job", GOOD.values(), ids=GOOD)
def test_short_forms_match_the_schema(job: dict[str, Any]) -> None:
    assert accepts({"entrypoint": {"module": "a"}, **job})


WRONG = {
    "unknown key": {"nodse": 3},
    "unknown key in a group": {"workers": {"per_nod": 3}},
    "nodes in words": {"nodes": "two"},
    "no nodes": {"nodes": 0},
    "wrong choice": {"logs": {"tee": "all"}},
    "wrong choice for a rank": {"logs": {"tee": {"0": "all"}}},
    "quoted number": {"restarts": {"max": "3"}},
    "group is a number": {"restarts": 3},
}


@pytest.mark.parametrize("job", WRONG.values(), ids=WRONG)
def test_refused_configurations_do_not_match_the_schema(job: dict[str, Any]) -> None:
    assert not accepts({"entrypoint": {"module": "a"}, **job})


def test_the_entry_point_is_required() -> None:
    assert not accepts({})


def test_every_key_is_described() -> None:
    for path in every_key():
        schema = SHIPPED
        for part in path:
            schema = resolved(schema)["properties"][part]
        assert "description" in schema or "description" in resolved(schema), path


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the target of a reference in a schema, with its last alternative."""
    schema = schema.get("anyOf", [schema])[-1]
    return SHIPPED["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


@pytest.mark.parametrize("key", sorted(set(ALIASES.values())))
def test_names_of_other_tools_lead_to_keys_that_exist(key: str) -> None:
    assert kind_at(split(key)) is not None


def test_a_script_that_exists_is_no_problem() -> None:
    assert script_problem("train.py", Path()) is None
