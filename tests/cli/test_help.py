"""Every command prints its help."""

import pytest

from hpcelastic.cli import COMMANDS, main


@pytest.mark.parametrize("command", [*COMMANDS, "config show"])
def test_a_command_prints_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    output = capsys.readouterr().out
    assert ended.value.code == 0
    assert output.startswith(f"usage: hpcelastic {command} [")
    assert "%(" not in output


def test_the_help_of_the_program_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    output = capsys.readouterr().out
    assert ended.value.code == 0
    assert [command for command in COMMANDS if f"\n    {command}" not in output] == []
