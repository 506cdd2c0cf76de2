"""The wheel, the manual page, the completion, and the recipes."""

import email
import re
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest
import shtab
import yaml

from hpcelastic import __version__
from hpcelastic.cli import COMMANDS, main
from hpcelastic.cli.completion import whole_parser
from tests.wheel import build_wheel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    return email.message_from_string(wheel.read(name).decode())


@pytest.mark.slow
def test_the_wheel_has_all_files_of_the_package(wheel: zipfile.ZipFile) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "hpcelastic"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {name for name in tracked.stdout.splitlines() if (ROOT / name).is_file()}
    packed = {name for name in wheel.namelist() if name.startswith("hpcelastic/")}
    assert packed == expected
    shared = {name.partition("/data/")[2] for name in wheel.namelist() if "/data/" in name}
    for directory in ("configs", "slurm"):
        for path in (ROOT / directory).iterdir():
            assert f"share/hpcelastic/{directory}/{path.name}" in shared
    assert "share/man/man1/hpcelastic.1" in shared


@pytest.mark.slow
def test_links_of_the_description_are_absolute(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert {*urls} == {"Documentation", "Source", "Issues", "Changelog"}


def test_extras_do_not_overlap() -> None:
    """An extra that needs another one names it, and does not repeat its packages. Development tools may stand alone."""
    extras = PROJECT["optional-dependencies"]
    seen: dict[str, str] = {}
    for extra, requirements in extras.items():
        for requirement in requirements:
            name = re.split(r"[<>=\[;! ]", requirement)[0]
            if name != PROJECT["name"]:
                assert seen.setdefault(name, extra) == extra, f"{name} is in {seen[name]} and in {extra}"


def test_private_parts_of_a_library_have_an_upper_bound() -> None:
    (submitit,) = (each for each in PROJECT["dependencies"] if each.startswith("submitit"))
    assert "<" in submitit


@pytest.mark.parametrize("shell", shtab.SUPPORTED_SHELLS)
def test_the_completion_has_all_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in text] == []


def test_the_completion_is_valid_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    complete = capsys.readouterr().out + (
        "\nCOMP_WORDS=(hpcelastic sub); COMP_CWORD=1; COMP_LINE='hpcelastic sub'; COMP_POINT=14\n"
        "$(complete -p hpcelastic | sed 's/.*-F \\([^ ]*\\).*/\\1/')\necho \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(["bash", "-c", complete], capture_output=True, text=True)
    assert done.stdout.split() == ["submit"], done.stderr


def test_the_manual_page_has_all_commands_and_options() -> None:
    page = (ROOT / "packaging" / "hpcelastic.1").read_text().replace("\\-", "-")
    assert f"hpcelastic {__version__}" in page, "run python docs/make_reference.py"
    for name in COMMANDS:
        assert f"hpcelastic {name}" in page, "run python docs/make_reference.py"
    (parsers,) = (action for action in whole_parser()._actions if action.choices and "submit" in action.choices)
    for parser in dict(parsers.choices or {}).values():
        shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", parser.format_help(), re.M)
        assert [option for option in shown if option not in (page + "--help")] == [], (
            "run python docs/make_reference.py"
        )


def test_the_recipes_have_the_requirements_of_the_package() -> None:
    conda = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    spack = (ROOT / "packaging/spack/package.py").read_text()
    assert conda["context"]["version"] == __version__ and f'version("{__version__}"' in spack
    renamed = {"isal": "python-isal"}
    for requirement in PROJECT["dependencies"]:
        name = re.split(r"[<>=;]", requirement)[0]
        assert [line for line in conda["requirements"]["run"] if line.startswith(renamed.get(name, name))], name
        assert f'"py-{name}@' in spack, name
