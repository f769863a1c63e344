"""Bind every use of torch_npu in a source tree to what torch_npu releases really offer.

Checked: `torch_npu.*`, `torch.npu.*` and `torch.ops.npu.*`, under whatever name they are imported.
A name must exist; a call of an operator must fit one overload of its schema (number of positional
arguments, keywords, what is required, constants of the wrong kind); where the result is unpacked,
the counts must agree. Not checked: values, shapes, what a variable holds, private names, and what
stands under a `hasattr(torch_npu, ...)` for the same name.
"""

import ast
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ascend_sim.contract.schemas import Release, Schema, release, versions
from ascend_sim.contract.uses import Use, find_uses

DEFAULT_VERSION = "2.13.0"


@dataclass(frozen=True, order=True)
class Finding:
    """One use that does not fit, and the releases that it does not fit."""

    path: str
    line: int
    name: str
    message: str
    versions: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}"
        return f"{where}: {self.name}: {self.message} [torch_npu {', '.join(self.versions)}]"


def check(directory: Path | str, *, version: str = DEFAULT_VERSION) -> list[Finding]:
    """Check all Python files below `directory`, or one file.

    Args:
        directory: a folder, or a file.
        version: a listed release (`2.7.1`) or a specifier (`>=2.7.1`: every listed release it
            allows).

    Returns:
        What does not fit, sorted by place; the releases of a finding are joined.

    Raises:
        ValueError: no listed release satisfies `version`.
    """
    chosen = [version] if version[:1].isdigit() else versions(version)
    if not chosen:
        raise ValueError(f"no schema list satisfies torch_npu {version}; there are {versions()}")
    releases = [release(one) for one in chosen]
    root = Path(directory)
    found: dict[Finding, list[str]] = {}
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        shown = path.name if root.is_file() else path.relative_to(root).as_posix()
        uses = read_uses(path.read_bytes())
        for one in releases:
            for finding in judge_all(uses, path=shown, against=one):
                found.setdefault(finding, []).append(one.version)
    return sorted(replace(finding, versions=tuple(where)) for finding, where in found.items())


def read_uses(source: bytes | str) -> list[Use]:
    """The uses of torch_npu in a module; none if it does not parse, which is the gate's to say."""
    text = source.decode(errors="replace") if isinstance(source, bytes) else source
    if "npu" not in text:
        return []
    try:
        return list(find_uses(ast.parse(text)))
    except (SyntaxError, ValueError):
        return []


def judge_all(uses: Iterable[Use], *, path: str, against: Release) -> list[Finding]:
    """The uses that do not fit one release."""
    judged = ((use, judge(use, against)) for use in uses)
    return [Finding(path, use.line, use.name, message) for use, message in judged if message]


def judge(use: Use, against: Release) -> str:
    """Say what is wrong with one use in one release; empty if nothing is."""
    package, _, rest = use.name.partition(".ops.npu.")
    if not rest:
        package, _, rest = use.name.partition(".")
    parts = rest.split(".")
    if any(part.startswith("_") and f"{part}" not in against.schemas for part in parts):
        return ""
    operator = parts[0]
    if operator in against.schemas:
        wanted = parts[1] if len(parts) > 1 else None
        return _judge_operator(use, against.schemas[operator], wanted)
    if operator in against.unsigned:
        return ""
    if package == "torch":
        return "no such operator"
    return "" if _exists(use.name, against) else "no such name"


def main(argv: Sequence[str]) -> int:
    """`check-calls [--json] [--version V] DIR`: print the findings; 1 if there are any."""
    arguments = list(argv)
    as_json = "--json" in arguments
    if as_json:
        arguments.remove("--json")
    version = DEFAULT_VERSION
    if "--version" in arguments:
        at = arguments.index("--version")
        version = (arguments[at + 1 : at + 2] or [""])[0]
        del arguments[at : at + 2]
    if len(arguments) != 1 or not version:
        print("usage: check-calls [--json] [--version 2.13.0|'>=2.7.1'] DIR", file=sys.stderr)
        return 2
    findings = check(arguments[0], version=version)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            print(finding)
        print(f"{len(findings)} calls or names do not fit torch_npu {version}", file=sys.stderr)
    return 1 if findings else 0


def _judge_operator(use: Use, overloads: Sequence[Schema], wanted: str | None) -> str:
    if wanted is not None:
        overloads = [s for s in overloads if (s.overload or "default") == wanted]
        if not overloads:
            return f"no overload {wanted}"
    if use.call is None:
        return ""
    problems = []
    for schema in overloads:
        problem = _bind(use.call, schema) or _count(use, schema)
        if not problem:
            return ""
        problems.append(problem)
    return problems[0] if len(problems) == 1 else f"fits no overload: {'; '.join(problems)}"


def _bind(call: ast.Call, schema: Schema) -> str:
    """Bind a call to a schema as torch does; empty if it fits."""
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    double_starred = any(k.arg is None for k in call.keywords)
    positional = schema.positional
    if len(call.args) > len(positional) and not starred:
        return f"{len(call.args)} positional arguments, {len(positional)} allowed"
    given = dict(zip((a.name for a in positional), call.args, strict=False)) if not starred else {}
    by_name = {argument.name: argument for argument in schema.arguments}
    for keyword in call.keywords:
        if keyword.arg is None:
            continue
        if keyword.arg not in by_name:
            return f"no argument {keyword.arg!r}"
        if keyword.arg in given:
            return f"argument {keyword.arg!r} given twice"
        given[keyword.arg] = keyword.value
    for name, value in given.items():
        if isinstance(value, ast.Constant) and not _fits(value.value, by_name[name].type):
            return f"argument {name!r} is {by_name[name].type}, not {value.value!r}"
    missing = [a.name for a in schema.arguments if a.default is None and a.name not in given]
    if missing and not starred and not double_starred:
        return f"missing {', '.join(map(repr, missing))}"
    return ""


def _fits(value: object, kind: str) -> bool:
    if value is None:
        return kind.endswith("?")
    kind = kind.removesuffix("?")
    if isinstance(value, str):
        return kind in ("str", "Device", "str[]")
    if isinstance(value, bool | int | float):
        number = kind.partition("[")[0] if "[" in kind and kind[-2:] != "[]" else kind
        wide = {"Scalar", "float", "ScalarType"}
        allowed = {
            bool: {"bool", "int", "SymInt", *wide},
            int: {"int", "SymInt", "bool", *wide},
        }.get(type(value), {"Scalar", "float"})
        return number in allowed
    return True


def _count(use: Use, schema: Schema) -> str:
    returned = len(schema.returns)
    if use.unpacked is not None and returned > 1 and use.unpacked != returned:
        return f"returns {returned} values, unpacked into {use.unpacked}"
    if use.index is not None and returned > 1 and not -returned <= use.index < returned:
        return f"returns {returned} values, value {use.index} is taken"
    return ""


def _exists(name: str, against: Release) -> bool:
    """Whether the modules hold `name`; attributes of classes and values are beyond the lists."""
    owner = ""
    for part in name.split("."):
        dotted = f"{owner}.{part}" if owner else part
        if owner and owner not in against.modules:
            return True
        if dotted not in against.names and dotted not in against.modules:
            return False
        owner = dotted
    return True
