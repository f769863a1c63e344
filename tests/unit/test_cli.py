"""The command line as a whole: help with examples, JSON, exit codes, completion, quiet colours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mindspeed_overlay.cli import COMMANDS, cli
from unit.overlay_sets import write_overlay

TOOLS = Path(__file__).parents[2] / "tools"
NO_TOOL_OF_DATA = {"apply", "completion", "new", "pin", "bundle", "import"}


def tool(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mindspeed_overlay", *words]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS), **env}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def find(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text_with_an_example(name: str) -> None:
    command = find(name)
    assert command.help is not None
    assert f"mindspeed-overlay {name}" in command.help or f" {name} " in command.help
    assert "Example" in command.help


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in NO_TOOL_OF_DATA])
def test_every_command_that_prints_data_has_json(name: str) -> None:
    assert any("--json" in parameter.opts for parameter in find(name).params), name


def test_list_prints_an_array_of_overlays_with_their_releases() -> None:
    rows = json.loads(tool("list", "--json").stdout)
    row = next(row for row in rows if row["id"] == "fusions/fused-swiglu")
    assert row["releases"][0] == "core_v0.12.1"
    assert len(row["releases"]) == 7
    assert row["options"] == ["--use-fused-swiglu"]
    keys = {"id", "family", "level", "summary", "releases", "options", "requires", "conflicts"}
    assert all(keys <= set(row) for row in rows)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["build", "--no-such-option"], 2),
        (["no-such-command"], 2),
        (["build", "--source", "ftp:x"], 2),
        (["build", "--release", "core_v9.9"], 3),
        (["build", "--feature", "no/such"], 4),
        (["show", "no/such"], 4),
        (["verify", "--installed", "--python", "/nonexistent/python"], 8),
    ],
)
def test_exit_codes_are_those_of_the_kind_of_failure(words: list[str], code: int) -> None:
    done = tool(*words)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_an_error_is_json_too() -> None:
    done = tool("build", "--json", "--release", "core_v9.9")
    problems = json.loads(done.stdout)["problems"]
    assert problems[0]["code"] == "E301"
    assert "core_v0.16.1" in problems[0]["message"]


def test_output_that_is_no_terminal_has_no_colour() -> None:
    done = tool("show", "no/such", FORCE_COLOR="", NO_COLOR="1")
    assert "\x1b" not in done.stderr + done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_and_answers(shell: str) -> None:
    assert "_MINDSPEED_OVERLAY_COMPLETE" in tool("completion", shell).stdout
    answer = tool(
        _MINDSPEED_OVERLAY_COMPLETE="bash_complete",
        COMP_WORDS="mindspeed-overlay show fusions/fused-sw",
        COMP_CWORD="2",
    )
    assert "fusions/fused-swiglu" in answer.stdout


def test_new_writes_an_overlay_that_loads_and_refuses_to_overwrite_it(tmp_path: Path) -> None:
    overlays = tmp_path / "overlays"
    write_overlay(overlays, "base/options")
    (overlays / "series").write_text("revision 1\nbase/options\n")
    words = ["--overlays", str(overlays), "new", "fusions/fused-gelu", "--summary", 'a "b"']
    done = tool(*words)
    assert done.returncode == 0, done.stderr
    for step in ("analyse", "patch", "argument", "enable", "test", "contribute"):
        assert f". {step}" in done.stdout
    rows = json.loads(tool("--overlays", str(overlays), "list", "--json").stdout)
    assert rows[1]["summary"] == 'a "b"'
    assert (tmp_path / "tests/features/fusions/test_fused_gelu.py").is_file()
    assert tool(*words).returncode == 4


def test_doctor_prints_what_it_found_without_secrets(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://user:secret@example.invalid/simple\n")
    done = tool("doctor", "--json", PIP_CONFIG_FILE=str(config))
    assert "secret" not in done.stdout
    names = {row["name"] for row in json.loads(done.stdout)}
    assert {"Python", "git", "pip", "torch", "CANN"} <= names
