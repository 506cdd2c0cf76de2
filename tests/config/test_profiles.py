"""The user's file of profiles: the selection of a profile, its effect, and its errors."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcelastic.cli import main
from hpcelastic.config import Resolved, choose_profile, from_mapping, load, show
from hpcelastic.errors import ConfigError

PROFILES = """\
default_profile: small
profiles:
  small:
    slurm: {partition: gpu, options: {mail-type: END, exclusive: true}}
    nodes: 2..4
  large:
    cluster: Jade
    slurm:
      partition: long
      account: 1.10
  empty:
"""
JOB = "entrypoint: {script: train.py}\nslurm: {account: a, options: {exclusive: false}}\n"


@pytest.fixture(autouse=True)
def _files(directory: Path) -> None:
    Path("mine.yaml").write_text(PROFILES)
    Path("job.yaml").write_text(JOB)
    Path("slurm.conf").write_text("# ClusterName=other\nclustername = jade # ours\n")


def loaded(name: str | None = None, overrides: tuple[str, ...] = (), **environ: str) -> Resolved:
    return load("job.yaml", overrides, profile=choose_profile(name, {"HPCELASTIC_CONFIG": "mine.yaml", **environ}))


JADE = {"SLURM_CONF": "slurm.conf"}
CHOICES: dict[str, tuple[str | None, Mapping[str, str], str | None]] = {
    "named": ("large", {}, "long"),
    "selected by the cluster": (None, JADE, "long"),
    "selected by name": ("small", JADE, "gpu"),
    "default": (None, {}, "gpu"),
    "default if the cluster's name is unknown": (None, {"SLURM_CONF": "nothing"}, "gpu"),
    "none": ("none", JADE, None),
    "empty": ("empty", JADE, None),
    "no file": (None, {"HPCELASTIC_CONFIG": ""}, None),
}


@pytest.mark.parametrize(("name", "environ", "partition"), CHOICES.values(), ids=CHOICES)
def test_which_profile_is_chosen(name: str | None, environ: Mapping[str, str], partition: str | None) -> None:
    assert loaded(name, **environ).config.slurm.partition == partition


PLACES = {
    "XDG": ({"XDG_CONFIG_HOME": "xdg", "HOME": "home"}, "xdg/hpcelastic/config.yaml"),
    "home": ({"HOME": "home"}, "home/.config/hpcelastic/config.yaml"),
    "empty XDG": ({"XDG_CONFIG_HOME": "", "HOME": "home"}, "home/.config/hpcelastic/config.yaml"),
}


@pytest.mark.parametrize(("environ", "place"), PLACES.values(), ids=PLACES)
def test_the_path_of_the_file(environ: Mapping[str, str], place: str) -> None:
    assert choose_profile(None, environ) is None
    with pytest.raises(ConfigError, match=f"^profile large: there is no file of profiles; create {place}$"):
        choose_profile("large", environ)
    Path(place).parent.mkdir(parents=True)
    Path("mine.yaml").rename(place)
    chosen = choose_profile("large", environ)
    assert chosen is not None
    assert chosen.value["slurm"]["partition"] == "long"


def test_a_job_precedes_its_profile_and_overrides_precede_both() -> None:
    config = loaded("small", ("nodes.max=8",)).config
    assert (config.nodes.min, config.nodes.max) == (2, 8)
    assert config.slurm.account == "a"
    assert config.slurm.options == {"mail-type": "END", "exclusive": False}


def test_an_empty_group_of_the_job_is_that_of_the_profile() -> None:
    Path("job.yaml").write_text("entrypoint: {script: train.py}\nslurm:\n")
    assert loaded("large").config.slurm.account == "1.10"


def test_a_profile_applies_to_a_mapping_too() -> None:
    profile = choose_profile("large", {"HPCELASTIC_CONFIG": "mine.yaml"})
    assert from_mapping({"entrypoint": {"module": "a"}}, profile=profile).config.slurm.partition == "long"


def test_each_value_of_a_profile_has_its_origin() -> None:
    origins = loaded("large", ("slurm.qos=q",)).origins
    assert {key: origins[f"slurm.{key}"] for key in ("partition", "account", "qos", "memory")} == {
        "partition": "profile large, mine.yaml:9",
        "account": "job.yaml:2",
        "qos": "override 1",
        "memory": "default",
    }
    assert loaded("small").origins["nodes.min"] == "profile small, mine.yaml:5"


def test_a_profile_may_have_an_old_name() -> None:
    Path("mine.yaml").write_text("profiles:\n  a:\n    network: {doorbell: false}\n")
    resolved = loaded("a")
    assert resolved.config.network.notifications is False
    (line,) = resolved.warnings
    assert line.startswith("mine.yaml:3: network.doorbell: is the old name of network.notifications; ")


WRONG = {
    "not YAML": ("profiles: [", None, r"mine\.yaml:1:12: is not valid YAML"),
    "given twice": ("profiles:\n  a:\n  a:\n", None, r"mine\.yaml:3: profiles\.a: is given twice, first at line 2"),
    "a list": ("- a\n", None, r"^mine\.yaml:1: contains no keys; write profiles: \{NAME: \{KEY: VALUE\}\}$"),
    "unknown key": ("slurm: {}\n", None, r"^mine\.yaml:1: slurm: no such key; the keys here are profiles, default_"),
    "no profiles": ("profiles: 3\n", None, r"^mine\.yaml:1: profiles: contains no profiles; write profiles:"),
    "a profile without keys": (
        "profiles:\n  a: 3\n",
        None,
        r"^mine\.yaml:2: profiles\.a: contains no keys; write keys of",
    ),
    "cluster": ("profiles:\n  a: {cluster: 3}\n", None, r"^mine\.yaml:2: profiles\.a\.cluster: is not text"),
    "default": (
        "default_profile: b\nprofiles: {a: }\n",
        None,
        r"^mine\.yaml:1: default_profile: there is no profile 'b'",
    ),
    "default that is no name": (
        "default_profile: [a]\nprofiles: {a: }\n",
        None,
        r"^mine\.yaml:1: default_profile: there is no profile \['a'\]",
    ),
    "unknown profile": (PROFILES, "lagre", r"^mine\.yaml: there is no profile lagre; did you mean large\?$"),
    "unlike any": (PROFILES, "x", r"^mine\.yaml: there is no profile x; the profiles are small, large, empty$"),
    "two for the cluster": (
        "profiles: {a: {cluster: jade}, b: {cluster: jade}}\n",
        None,
        r"^mine\.yaml: the profiles a, b all match the cluster jade; choose one with --profile or default_profile$",
    ),
    "both names of a key": (
        "profiles:\n  a:\n    network: {doorbell: true, notifications: true}\n",
        "a",
        r"^mine\.yaml:3: network\.doorbell: is the old name of network\.notifications, which is given too; ",
    ),
    "key of a job": (
        "profiles:\n  a:\n    slurm: {partitoin: x}\n",
        "a",
        r"^mine\.yaml:3: slurm\.partitoin: no such key; ",
    ),
    "value of a job": (
        "profiles:\n  a:\n    nodes: two\n",
        "a",
        r"^mine\.yaml:3: nodes: is the text 'two'; write a number",
    ),
}


@pytest.mark.parametrize(("text", "name", "message"), WRONG.values(), ids=WRONG)
def test_an_error_in_profiles_has_line_and_key(text: str, name: str | None, message: str) -> None:
    Path("mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        loaded(name, **JADE)


def test_the_default_decides_between_profiles_of_one_cluster() -> None:
    Path("mine.yaml").write_text(
        "default_profile: b\nprofiles: {a: {cluster: jade}, b: {cluster: jade, slurm: {qos: q}}}\n"
    )
    assert loaded(None, **JADE).config.slurm.qos == "q"


def test_a_given_file_must_exist() -> None:
    with pytest.raises(ConfigError, match=r"^other\.yaml: no such file; "):
        choose_profile(None, {"HPCELASTIC_CONFIG": "other.yaml"})


def test_an_empty_file_has_no_profiles() -> None:
    Path("mine.yaml").write_text("# nothing yet\n")
    assert show(loaded()) == show(load("job.yaml"))


@pytest.mark.parametrize("command", [["config", "show"], ["sbatch"], ["submit", "--dry-run"]], ids=" ".join)
def test_commands_accept_a_profile(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCELASTIC_CONFIG", "mine.yaml")
    assert main([*command, "--profile", "large", "job.yaml"]) == 0
    assert "long" in capsys.readouterr().out


def test_a_default_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hpcelastic").mkdir()
    (tmp_path / "hpcelastic" / "config.yaml").symlink_to("config.yaml")
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read: Too many levels"):
        choose_profile(None, {"XDG_CONFIG_HOME": str(tmp_path)})
