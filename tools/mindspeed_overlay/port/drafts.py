"""Draft patches from runtime patches: where a replacement is an edited copy of the original.

A function that somebody sets in the place of an upstream one, and that shares most of its tokens
with it, is upstream's function with an edit. The draft is that edit alone: statements that both
have stay as upstream lays them out, docstrings and annotations stay upstream's, and names that the
replacement takes from its own module are imported at the top of the body. It is a draft: what the
gate says of it is part of the result, and what the edit is for has to be written by a person.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from mindspeed_overlay.drift.monkey import MonkeyPatches, Registration
from mindspeed_overlay.drift.monkey_fate import Target, find_targets
from mindspeed_overlay.drift.monkey_names import Found, Function, module_of
from mindspeed_overlay.errors import Problem
from mindspeed_overlay.gate import check_gate
from mindspeed_overlay.module_index import ModuleIndex
from mindspeed_overlay.patch_diff import diff_lines
from mindspeed_overlay.port.align import align_lines
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.draft_names import NoDraftError, find_imports
from mindspeed_overlay.port.units import Unit
from mindspeed_overlay.tree import Files

ALIKE = 0.7
"""The share of tokens from which a replacement counts as an edited copy."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One function with the edit that its replacement makes.

    Attributes:
        target: the dotted name that was registered.
        path, symbol: upstream's function.
        origin: file and line of the replacement.
        similarity: the share of tokens that both have, from 0 to 1.
        num_changed_lines: added and removed.
        note: what the draft leaves out of the replacement.
        problems: what the gate finds in it.
    """

    target: str
    path: str
    symbol: str
    origin: str
    similarity: float
    num_changed_lines: int
    note: str = ""
    problems: tuple[Problem, ...] = ()

    def describe(self) -> str:
        """One line for a report."""
        verdict = "gate: no" if self.problems else "gate: ok"
        facts = [
            f"{self.target}: from {self.origin}",
            f"{self.similarity:.0%} alike",
            f"{self.num_changed_lines} lines",
            *filter(None, [self.note]),
            verdict,
        ]
        return ", ".join(facts)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "target": self.target,
            "path": self.path,
            "symbol": self.symbol,
            "origin": self.origin,
            "similarity": round(self.similarity, 3),
            "changed_lines": self.num_changed_lines,
            "note": self.note,
            "problems": [problem.to_json() for problem in self.problems],
        }


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """All drafts of a source tree.

    Attributes:
        edited: upstream's files with them.
        left_out: target and reason of the others.
    """

    drafts: tuple[Draft, ...]
    edited: Mapping[str, bytes]
    left_out: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "drafts": [draft.to_json() for draft in self.drafts],
            "left_out": [{"target": name, "reason": why} for name, why in self.left_out],
        }


@dataclass(frozen=True)
class _Edit:
    draft: Draft
    first: int
    end: int
    text: bytes


def draft_patches(patches: MonkeyPatches, base: Files, *, package: str, python: str) -> Drafts:
    """Draft the edits that runtime patches make to a release.

    Args:
        patches: what `read_monkey_patches` found.
        base: the files of the release that they were written for.
        package: the dotted name of the folder that was read, "" where it holds packages.
        python: the oldest Python of the release.
    """
    index = ModuleIndex(base)
    targets = find_targets(patches, base)
    left_out = list(targets.others.items())
    edits: dict[str, list[_Edit]] = {}
    for target in targets.known:
        try:
            edit = _draft(target, index, package)
        except NoDraftError as error:
            left_out.append((target.name, str(error)))
            continue
        beside = edits.setdefault(edit.draft.path, [])
        if any(e.first < edit.end and edit.first < e.end for e in beside):
            left_out.append((target.name, "another name of a function that is drafted"))
        else:
            beside.append(edit)
    edited = {path: _write(base[path], found) for path, found in edits.items()}
    touched = dict.fromkeys(edited, ("draft",))
    # The replacements' own modules are taken as installed beside the release.
    installed = {
        f"{package.replace('.', '/')}/{path}".lstrip("/"): b for path, b in patches.files.items()
    }
    pristine = {**installed, **base}
    problems = check_gate(pristine, {**pristine, **edited}, python=python, touched=touched)
    drafts = [
        replace(e.draft, problems=_own(e.draft, problems)) for es in edits.values() for e in es
    ]
    return Drafts(
        drafts=tuple(sorted(drafts, key=lambda d: d.target)),
        edited=edited,
        left_out=tuple(sorted(left_out)),
    )


def _own(draft: Draft, problems: Sequence[Problem]) -> tuple[Problem, ...]:
    inside = f"{draft.symbol}."
    return tuple(p for p in problems if p.path == draft.path and f"{p.symbol}.".startswith(inside))


def _write(data: bytes, edits: Sequence[_Edit]) -> bytes:
    lines = Document(data).lines[:]
    for edit in sorted(edits, key=lambda e: -e.first):
        lines[edit.first : edit.end] = [edit.text]
    return b"".join(lines)


def _draft(target: Target, index: ModuleIndex, package: str) -> _Edit:
    path = index.paths[target.use.module]
    document = Document(index.files[path])
    symbols = document.module.by_qualname[target.use.qualname]
    if target.is_class or symbols[0].kind != "function":
        raise NoDraftError("a class, not a function")
    if len(symbols) > 1:
        raise NoDraftError("defined more than once")
    first, end = symbols[0].def_line - 1, symbols[0].last_line
    lines = document.lines[first:end]
    best: tuple[float, Registration, Found, _Copy] | None = None
    for registration in target.registrations:
        found = registration.found
        if registration.effect == "wraps" or found is None or not isinstance(found.node, Function):
            continue
        copy = _Copy(lines, found)
        if best is None or copy.similarity > best[0]:
            best = copy.similarity, registration, found, copy
    if best is None:
        replaced = "its replacement is not a function of this tree"
        raise NoDraftError(replaced if target.is_replaced else "wrapped, not replaced")
    similarity, _, found, copy = best
    if similarity < ALIKE:
        raise NoDraftError(f"its replacement is no edited copy ({similarity:.0%} alike)")
    module = ".".join(filter(None, (package, module_of(found.file.path))))
    imports = find_imports(found, index, target.use.module, module)
    text = copy.write(imports)
    changed = sum(i2 - i1 + j2 - j1 for i1, i2, j1, j2 in diff_lines(lines, text.splitlines(True)))
    if not changed:
        raise NoDraftError("its replacement is the same")
    draft = Draft(
        target=target.name,
        path=path,
        symbol=target.use.qualname,
        origin=f"{found.file.path}:{found.node.lineno}",
        similarity=similarity,
        num_changed_lines=changed,
        note=_compare_decorators(found, symbols[0].decorators),
    )
    return _Edit(draft, first, end, text)


def _compare_decorators(found: Found, upstream: Sequence[str]) -> str:
    own = [ast.unparse(decorator) for decorator in found.node.decorator_list]
    return "" if own == [*upstream] else f"without its decorators ({', '.join(own) or 'none'})"


class _Copy:
    """Upstream's function beside the one that replaces it."""

    def __init__(self, lines: Sequence[bytes], found: Found) -> None:
        head = lines[0]
        self._indent = head[: len(head) - len(head.lstrip())]
        self._is_shifted = len(self._indent) != found.node.col_offset
        self.old = Document(b"".join(lines))
        name = self.old.units[0].tokens[1].decode()
        self.new = Document(_lay_out(found, name, self._indent.decode()))
        self._keys = [[*map(_key, _body(d))] for d in (self.old, self.new)]
        ours, theirs = ([t for key in keys for t in key.split()] for keys in self._keys)
        self.similarity = SequenceMatcher(None, ours, theirs, autojunk=False).ratio()

    def write(self, imports: Sequence[str]) -> bytes:
        """Upstream's function with what is new in the other one."""
        old, new = _body(self.old), _body(self.new)
        to_new = align_lines(*self._keys)
        from_new = {j: i for i, j in enumerate(to_new) if j is not None}
        body = []
        for j, unit in enumerate(new):
            i = from_new.get(j)
            if i is not None and old[i].indent == unit.indent:
                body.append(self._take(self.old, old[i]))
            elif self._is_shifted and any(b"\n" in token for token in unit.tokens):
                raise NoDraftError("a string of several lines would have to be indented anew")
            else:
                body.append(self._take(self.new, unit))
        inner = new[0].indent if new else self._indent + b"    "
        added = [inner + statement.encode() + b"\n" for statement in imports]
        return b"".join([*self._head(), *added, *body])

    def _head(self) -> list[bytes]:
        """The `def` line, upstream's where the parameters are the same, and its docstring."""
        chosen = self.old if _shape(self.old) == _shape(self.new) else self.new
        return [
            b"".join(chosen.lines[: chosen.units[0].end]),
            *(self._take(self.old, unit) for unit in self.old.units[1:2] if _is_docstring(unit)),
        ]

    @staticmethod
    def _take(document: Document, unit: Unit) -> bytes:
        """A statement with the blank lines and comments above it."""
        at = document.units.index(unit)
        start = document.units[at - 1].end if at else 0
        return b"".join(document.lines[start : unit.end])


def _lay_out(found: Found, name: str, margin: str) -> bytes:
    """A replacement as upstream would have it: its name, and the indentation of its place."""
    source = ast.get_source_segment(found.file.source, found.node, padded=True)
    assert source is not None
    head = rf"\bdef\s+{re.escape(found.node.name)}\b"
    plain = re.sub(head, f"def {name}", dedent(source), count=1)
    return (indent(plain, margin).rstrip() + "\n").encode()


def _body(document: Document) -> list[Unit]:
    units = document.units[1:]
    return units[1:] if units and _is_docstring(units[0]) else units


def _is_docstring(unit: Unit) -> bool:
    return (
        unit.kind == "expression_statement" and re.match(rb"[rRbBuU]*[\"']", unit.key) is not None
    )


def _key(unit: Unit) -> bytes:
    """A unit's tokens with one kind of quotes."""
    return b" ".join(
        b'"' + t[1:-1] + b'"' if re.fullmatch(rb"'[^'\"\\]*'", t) else t for t in unit.tokens
    )


def _shape(document: Document) -> str:
    """The parameters and defaults of a function, without annotations."""
    (node,) = ast.parse(dedent(document.data.decode())).body
    assert isinstance(node, Function)
    for part in ast.walk(node.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    return ast.dump(node.args)


def package_of(folder: Path) -> str:
    """The dotted name of a folder: its own where it is a package."""
    return folder.resolve().name if (folder / "__init__.py").is_file() else ""
