"""The alerts for Prometheus and the dashboard for Grafana that the package contains."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard

from hpcelastic.api.metrics import RunCollector

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "packaging" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "packaging" / "prometheus" / "dashboard.json"
_METRIC = re.compile(r"\bhpcelastic_\w+")


@pytest.fixture
def exported() -> set[str]:
    """The names of the metrics that `hpcelastic metrics` exports."""
    return {family.name + "_total" * (family.type == "counter") for family in RunCollector([]).collect()}


def promtool(*arguments: str | Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_are_for_metrics_that_exist(exported: set[str]) -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    for rule in rules:
        used = set(_METRIC.findall(rule["expr"]))
        assert used and used <= exported, rule["alert"]


def test_the_alerts_are_well_formed() -> None:
    promtool("check", "rules", ALERTS)


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", Path(__file__).with_name("alerts.test.yml"))


def test_the_dashboard_shows_metrics_that_exist(exported: set[str]) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = set()
    for panel in panels:
        for target in panel["targets"]:
            used = set(_METRIC.findall(target["expr"]))
            assert used and used <= exported, panel["title"]
            shown |= used
    assert {"hpcelastic_node_seconds_total", "hpcelastic_faults_total", "hpcelastic_step"} <= shown


def test_each_query_of_the_dashboard_is_well_formed(tmp_path: Path) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    known = {'run=~"$run"': 'run=~"train"', "$__rate_interval": "5m"}
    for variable, value in known.items():
        expressions = [each.replace(variable, value) for each in expressions]
    rules = [{"record": f"panel{i}", "expr": each} for i, each in enumerate(expressions)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", path)


def test_grafana_knows_every_part_of_the_dashboard() -> None:
    """Grafana's own library for dashboards reads it, and leaves no field of a panel's frame out."""
    raw = json.loads(DASHBOARD.read_text())
    read = json.loads(json.dumps(Dashboard.from_json(raw).to_json(), default=lambda value: value.to_json()))
    assert set(raw) <= set(read)
    for before, after in zip(raw["panels"], read["panels"], strict=True):
        assert set(before) <= set(after), before["title"]
        assert before["gridPos"] == {name: after["gridPos"][name] for name in before["gridPos"]}


def test_no_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken, panel["title"]
        taken |= cells
