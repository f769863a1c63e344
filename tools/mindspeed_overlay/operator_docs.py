"""docs/ops/: a page for each operator in `mindspeed.ops` (`show --operators FOLDER`).

Read off the source, which is not executed: signature, docstring, and the operators of torch_npu
that it names. Which torch_npu has these is looked up in the lists that ascend_sim keeps.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mindspeed_overlay.overlay import Overlay

_FOLDER = "mindspeed/ops/"
_SECTIONS = {"Args": "Arguments", "Returns": "Result", "Raises": "Constraints"}
_CALLED = re.compile(r"torch_npu\.(npu_\w+)|getattr\(torch_npu, \"(npu_\w+)\"")
_NOTE = """\
Written by `mindspeed-overlay show --operators docs/ops` from `mindspeed/ops/` in the overlays:
edit that, not this page.
"""


@dataclass(frozen=True)
class Operator:
    """A public function of a module of `mindspeed.ops` that has its name."""

    name: str
    overlay: str
    summary: str
    signature: str
    sections: dict[str, str]
    called: tuple[str, ...]


def find_operators(overlays: Iterable[Overlay], tags: tuple[str, ...]) -> Iterator[Operator]:
    """Every operator of the set, in the order of names.

    Args:
        overlays: in series order.
        tags: all releases; the newest one's files are read.

    Raises:
        ValueError: a module without a documented function of its name.
    """
    found = []
    for overlay in overlays:
        files = overlay.files_for(tags[-1], tags) if overlay.serves(tags[-1], tags) else {}
        for path, data in files.items():
            name = path.removeprefix(_FOLDER).removesuffix(".py")
            if path.startswith(_FOLDER) and name != "__init__":
                found.append(_read(name, data.decode("utf-8"), overlay.id))
    return iter(sorted(found, key=lambda operator: operator.name))


def _read(name: str, source: str, overlay: str) -> Operator:
    functions = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    function = next((f for f in functions if f.name == name), None)
    text = ast.get_docstring(function) if function else None
    if function is None or text is None:
        raise ValueError(f"mindspeed/ops/{name}.py has no documented function {name}")
    head, sections = _split(text)
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    shown = "".join(f"    {argument},\n" for argument in _list_arguments(function.args))
    called = [first or second for first, second in _CALLED.findall(source)]
    return Operator(
        name,
        overlay,
        head,
        f"{name}(\n{shown}){returns}",
        sections,
        tuple(dict.fromkeys(called)),
    )


def _list_arguments(arguments: ast.arguments) -> Iterator[str]:
    """Each argument with its annotation and default."""
    every = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(every) - len(arguments.defaults))
    for argument, default in zip(every, [*missing, *arguments.defaults], strict=True):
        yield _show_argument(argument, default)
    if arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _show_argument(argument, default)


def _show_argument(argument: ast.arg, default: ast.expr | None) -> str:
    shown = ast.unparse(argument)
    return shown if default is None else f"{shown} = {ast.unparse(default)}"


def _split(text: str) -> tuple[str, dict[str, str]]:
    """The part before the sections of a Google docstring, and the sections by name."""
    parts = re.split(r"^(Args|Returns|Raises):\n", inspect.cleandoc(text), flags=re.MULTILINE)
    sections = {n: inspect.cleandoc(body) for n, body in zip(parts[1::2], parts[2::2], strict=True)}
    return parts[0].strip(), sections


def describe_operators(operators: Iterable[Operator]) -> dict[str, str]:
    """The pages by file name, in Markdown; README.md lists them."""
    listed = list(operators)
    rows = "".join(
        f"| [{o.name}]({o.name}.md) | {o.summary.splitlines()[0]} | {_join(o.called)} "
        f"| {_find_floor(o.called)} |\n"
        for o in listed
    )
    index = (
        f"# Operators of mindspeed.ops\n\n{_NOTE}\nMindSpeed's names, each computed by torch_npu. "
        "An operator without a page is not in `mindspeed.ops`: call torch_npu's.\n\n"
        f"| Operator | What it computes | By | torch_npu |\n|---|---|---|---|\n{rows}"
    )
    return {"README.md": index} | {f"{o.name}.md": _describe(o) for o in listed}


def _describe(operator: Operator) -> str:
    parts = [
        f"# {operator.name}\n\n{_NOTE}\n{operator.summary}\n",
        f"\n## Signature\n\n    from mindspeed.ops.{operator.name} import {operator.name}\n\n",
        _indent(operator.signature),
    ]
    for section, title in _SECTIONS.items():
        if section in operator.sections:
            parts.append(f"\n## {title}\n\n{_list_entries(operator.sections[section])}")
    parts.append(
        f"\n## Computed by\n\n{_join(operator.called)} of torch_npu, "
        f"{_find_floor(operator.called)}; overlay `{operator.overlay}`.\n"
    )
    return "".join(parts)


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _list_entries(text: str) -> str:
    """Entries `name: meaning` of a section, continued lines joined; other text as it is."""
    entries = re.split(r"\n(?! )", text)
    joined = [" ".join(line.strip() for line in entry.splitlines()) for entry in entries]
    if not all(re.match(r"\w+: ", entry) for entry in joined):
        return " ".join(joined) + "\n"
    return "".join("- `{}`: {}\n".format(*entry.split(": ", 1)) for entry in joined)


def _join(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _find_floor(names: Iterable[str]) -> str:
    """From which of the torch_npu releases that are listed all of these operators are there."""
    from ascend_sim.contract.schemas import release, versions

    have = [
        version for version in versions() if all(name in release(version).schemas for name in names)
    ]
    return f"{have[0]} on" if have else "in no listed release"
