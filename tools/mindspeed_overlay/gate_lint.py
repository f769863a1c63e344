"""Run ruff once over many modules: syntax for a Python version, undefined names, redefinitions.

No configuration of the user or of an enclosing project takes part, and no comment in the source
silences a finding: an overlay can't switch its own gate off.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import MissingError, Problem
from mindspeed_overlay.gate_finding import Finding
from mindspeed_overlay.syntax import MODULE, Module, parse_module

# F405 stands for F821 where a star import leaves the linter unsure.
_RULES = {"F405": "E602", "F811": "E603", "F821": "E602", "F822": "E602", "F823": "E602"}
_SYNTAX = "E601"
_LINE_REFERENCE = re.compile(r" on line \d+")
_REDEFINITION = re.compile(r"Redefinition of unused `(\w+)` from line (\d+)")
_UNSURE = re.compile(r"`(\w+)` may be undefined")
_TIMEOUT_S = 120


def run_linter(sources: Sequence[bytes], *, python: str) -> list[dict[str, Any]]:
    """Ruff's own entries on all sources, from one process; may run in a thread.

    Args:
        sources: texts of modules; they are written to a temporary folder under neutral names.
        python: the version whose syntax counts, such as `3.10`.

    Raises:
        MissingError: ruff can't be run, or gives no usable answer.
    """
    if not sources:
        return []
    with tempfile.TemporaryDirectory(prefix="mindspeed-overlay-gate-") as folder:
        for number, source in enumerate(sources):
            text = _decode(source)
            data = source.decode("latin-1").encode() if text is None else text.encode()
            (Path(folder) / f"m{number}.py").write_bytes(data)
        return _run_ruff(folder, python=python)


def read_findings(
    entries: Iterable[dict[str, Any]], sources: Sequence[bytes]
) -> list[list[Finding]]:
    """The findings in each source, in the order of the sources."""
    found: list[list[Finding]] = [_check_encoding(source) for source in sources]
    for entry in entries:
        number = int(Path(entry["filename"]).stem.removeprefix("m"))
        finding = _to_finding(entry, sources[number])
        found[number] += [finding] if finding is not None else []
    return found


def _decode(source: bytes) -> str | None:
    """The text as Python reads it; None where Python refuses to."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        return source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return None


def _check_encoding(source: bytes) -> list[Finding]:
    # Ruff reads nothing but UTF-8, so it is given that, and this is told apart before.
    if _decode(source) is not None:
        return []
    message = "the bytes are not in the encoding that the module declares, or UTF-8"
    return [Finding(_SYNTAX, message, "encoding", 1, MODULE)]


def _run_ruff(folder: str, *, python: str) -> list[dict[str, Any]]:
    command = [
        *(sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--no-fix", "--quiet"),
        *("--ignore-noqa", "--no-respect-gitignore", "--exit-zero", "--output-format", "json"),
        *("--select", ",".join(_RULES), "--target-version", "py" + python.replace(".", "")),
        ".",
    ]
    # RUFF_* variables would redirect or reformat the output.
    env = {name: value for name, value in os.environ.items() if not name.startswith("RUFF_")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode == 0:
            entries: list[dict[str, Any]] = json.loads(done.stdout)
            return entries
        reason = done.stderr.decode(errors="replace").strip()
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        reason = str(error)
    raise MissingError(
        Problem(
            code="E806",
            message=f"the gate needs ruff, which doesn't run: {reason or 'no output'}",
            hint=f"`{sys.executable} -m pip install ruff`, then run `mindspeed-overlay doctor`",
        )
    )


def _to_finding(entry: dict[str, Any], source: bytes) -> Finding | None:
    line, message = int(entry["location"]["row"]), str(entry["message"])
    code = _RULES.get(entry["code"] or "", _SYNTAX)
    module = parse_module(source)
    symbol = module.symbol_at(line)
    if again := _REDEFINITION.match(message):
        scope = _find_scope(module, again[1], {int(again[2]), line})
        if scope is None:
            return None
        message, symbol = f"`{again[1]}` is defined again, first on line {again[2]}", scope
    if unsure := _UNSURE.match(message):
        message = f"Undefined name `{unsure[1]}`"
    return Finding(code, message, _LINE_REFERENCE.sub("", message), line, symbol)


def _find_scope(module: Module, name: str, lines: set[int]) -> str | None:
    """The scope that binds a name on all these lines.

    None where they lie in two scopes: the linter also reports a parameter or a loop variable that
    hides an unused import, which replaces nothing.
    """
    for scope, names in module.bindings.items():
        if lines <= {binding.line for binding in names.get(name, ())}:
            return scope
    return None
