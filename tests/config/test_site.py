"""The file of a site: defaults below the profile of the user, and limits."""

from pathlib import Path

import pytest

from hpcelastic.config import choose_profile, load, read_site
from hpcelastic.config.resolve import Resolved
from hpcelastic.errors import ConfigError

SITE = """\
defaults:
  run: {directory: /scratch/runs}
  slurm: {partition: gpu, account: a1}
limits:
  nodes.max: 8
  slurm.max_requeues: 20
  run.total_time: 14-00:00:00
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "profiles.yaml").write_text("default_profile: p\nprofiles: {p: {slurm: {account: mine}}}\n")
    return tmp_path


def resolved(job: str = "", site: str = SITE) -> Resolved:
    Path("site.yaml").write_text(site)
    Path("job.yaml").write_text(f"entrypoint: {{script: train.py}}\n{job}")
    profile = choose_profile(None, {"HPCELASTIC_CONFIG": "profiles.yaml"})
    return load("job.yaml", profile=profile, site=read_site({"HPCELASTIC_SITE_CONFIG": "site.yaml"}))


def test_defaults_are_below_the_profile_and_the_job() -> None:
    found = resolved("slurm: {partition: long}")
    slurm = found.config.slurm
    assert (slurm.partition, slurm.account, found.config.run.directory) == ("long", "mine", "/scratch/runs")
    assert found.origins["run.directory"] == "site, site.yaml:2"
    assert found.origins["slurm.account"] == "profile p, profiles.yaml:2"


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ("nodes: 9", r"nodes\.max: is 9; this site allows at most 8 \(site\.yaml\)"),
        ("nodes: 2..9", r"job\.yaml:2: nodes\.max: is 9"),
        ("slurm: {max_requeues: 21}", r"slurm\.max_requeues: is 21; this site allows at most 20"),
        ("run: {total_time: 15-00:00:00}", r"run\.total_time: is 15-00:00:00; this site allows at most 14-00:00:00"),
        ("run: {total_time: UNLIMITED}", r"run\.total_time: is UNLIMITED; this site allows at most 14-00:00:00"),
    ],
)
def test_a_value_beyond_a_limit_is_refused(job: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolved(job)


@pytest.mark.parametrize("job", ["nodes: 8", "run: {total_time: 14-00:00:00}", "run: {total_time: 60}"])
def test_a_value_at_a_limit_is_accepted(job: str) -> None:
    resolved(job)


def test_a_limit_below_a_default_is_the_default() -> None:
    found = resolved()
    assert found.config.slurm.max_requeues == 20
    assert found.origins["slurm.max_requeues"] == "site, site.yaml:6"
    lower = resolved(site=SITE.replace("account: a1", "account: a1, max_requeues: 5"))
    assert lower.config.slurm.max_requeues == 5


def test_a_site_forbids_submission_from_compute_nodes() -> None:
    site = "submit_from_nodes: false\n"
    found = resolved("", site)
    assert found.config.slurm.refill == 0 and found.origins["slurm.refill"] == "site, site.yaml:1"
    with pytest.raises(ConfigError, match=r"job\.yaml:2: slurm\.refill: is 60; this site allows no submission from"):
        resolved("slurm: {refill: 60}", site)
    resolved("slurm: {refill: 0}", site)


@pytest.mark.parametrize(
    ("site", "problem"),
    [
        ("- a", "contains no keys; write defaults: {KEY: VALUE} and limits"),
        ("default: {}", r"site\.yaml:1: default: no such key; the keys here are defaults, limits, submit_from_nodes"),
        ("limits: 3", "limits: is 3; write lines KEY: VALUE below it"),
        ("submit_from_nodes: 'no'", "submit_from_nodes: is 'no'; write true or false"),
        ("limits: {nodes: 3}", "is no key of a job with a number; write GROUP.KEY, such as nodes.max"),
        ("limits: {slurm.requeue: 3}", "is no key of a job with a number"),
        ("limits: {nodes.max: many}", "is 'many'; write a number"),
        ("limits: {slurm.time: long}", "is 'long'; write MINUTES, HH:MM:SS or D-HH:MM:SS"),
        ("defaults: {slurm: {partion: gpu}}", r"site\.yaml:1: slurm\.partion: "),
    ],
)
def test_a_wrong_file_is_refused(site: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolved("", site)


def test_without_a_file_there_are_no_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert read_site({"HPCELASTIC_SITE_CONFIG": ""}) is None
    monkeypatch.setattr("hpcelastic.config.site.DEFAULT_PATH", tmp_path / "nothing.yaml")
    assert read_site({}) is None
    with pytest.raises(ConfigError, match=r"other\.yaml: no such file"):
        read_site({"HPCELASTIC_SITE_CONFIG": "other.yaml"})


def test_the_default_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    monkeypatch.setattr("hpcelastic.config.site.DEFAULT_PATH", tmp_path / "site.yaml")
    site = read_site({})
    assert site is not None and site.limits["nodes.max"] == 8


def test_a_default_file_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").symlink_to("site.yaml")
    monkeypatch.setattr("hpcelastic.config.site.DEFAULT_PATH", tmp_path / "site.yaml")
    with pytest.raises(ConfigError, match=r"site\.yaml: cannot be read: Too many levels"):
        read_site({})
