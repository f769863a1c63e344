"""Edits that say one thing of every place they meet, and so can be said again of other places.

"This file has `nvtx` wherever it had `torch.cuda.nvtx`" and "this function's call of `f` passes
`k=v`" hold for upstream's new statements too, also where it rewrote those that the edit was made
in. Both are read from the edit alone and used only where it has no place otherwise.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from tree_sitter import Node

from mindspeed_overlay.patch_diff import Edit
from mindspeed_overlay.port.calls import callee_of, keyword_of, list_arguments, list_calls
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.model import Placed, Swap
from mindspeed_overlay.port.nodes import write_elements
from mindspeed_overlay.port.slots import Statements
from mindspeed_overlay.port.units import Unit, node_key

_DOT = b"."


@dataclass(frozen=True)
class Substitution:
    """One dotted name in the place of another, as tokens, throughout a file."""

    old: tuple[bytes, ...]
    new: tuple[bytes, ...]

    def find(self, document: Document) -> list[Swap]:
        """What to swap in a file so that it has the new name everywhere."""
        key = b" ".join(self.old)
        nodes = (n for unit in _code(document) for n in _walk(unit.nodes) if node_key(n) == key)
        return [Swap(n.start_byte, n.end_byte, b"".join(self.new)) for n in nodes]

    def __str__(self) -> str:
        old, new = (b"".join(side).decode(errors="replace") for side in (self.old, self.new))
        return f"{new} for {old}"


def find_substitution(old: Document, edited: Document) -> Substitution | None:
    """The one substitution that all edits of a file make, added imports aside; else None."""
    before, after = _code(old), _code(edited)
    imports = ({unit.key for unit in d.units if unit.is_import} for d in (old, edited))
    if len(before) != len(after) or next(imports) - next(imports):
        return None
    pairs = [(b.tokens, a.tokens) for b, a in zip(before, after, strict=True)]
    changed = [(b, a) for b, a in pairs if b != a]
    if not changed:
        return None
    found = _compare(*changed[0])
    if found is None:
        return None
    same = all(_exchange(b, found) == a for b, a in pairs)
    return found if same else None


def _code(document: Document) -> list[Unit]:
    return [unit for unit in document.units if not unit.is_import]


def _compare(before: Sequence[bytes], after: Sequence[bytes]) -> Substitution | None:
    """The dotted names in which two statements first differ, without the part that both end in."""
    both = zip(before, after, strict=False)
    start = len([*takewhile(lambda pair: pair[0] == pair[1], both)])
    while start and _DOT in (before[start - 1], *before[start : start + 1]):
        start -= 1
    left, right = (_read_dotted(side[start:]) for side in (before, after))
    while min(len(left), len(right)) > 1 and left[-1] == right[-1]:
        left, right = left[:-1], right[:-1]
    return Substitution(_join(left), _join(right)) if left and right else None


def _read_dotted(tokens: Sequence[bytes]) -> Sequence[bytes]:
    """The names of the dotted name at the start of some tokens."""
    names = tokens[::2]
    size = 0
    while size < len(names) and names[size].decode(errors="replace").isidentifier():
        size += 1
        if tokens[2 * size - 1 : 2 * size] != (_DOT,):
            break
    return names[:size]


def _join(names: Sequence[bytes]) -> tuple[bytes, ...]:
    return tuple(part for name in names for part in (_DOT, name))[1:]


def _exchange(tokens: Sequence[bytes], name: Substitution) -> tuple[bytes, ...]:
    found: list[bytes] = []
    size, at = len(name.old), 0
    while at < len(tokens):
        inside = at > 0 and tokens[at - 1] == _DOT
        if not inside and tuple(tokens[at : at + size]) == name.old:
            found += name.new
            at += size
        else:
            found.append(tokens[at])
            at += 1
    return tuple(found)


def _walk(nodes: Iterable[Node]) -> Iterator[Node]:
    """Names and attributes of nodes, the outermost first; only what starts an expression."""
    for node in nodes:
        if node.type in ("identifier", "attribute"):
            yield node
        if node.type == "attribute":
            yield from _walk([o] if (o := node.child_by_field_name("object")) is not None else [])
        elif node.type == "keyword_argument":
            yield from _walk([v] if (v := node.child_by_field_name("value")) is not None else [])
        else:
            yield from _walk(node.named_children)


def place_keyword(statements: Statements, edited: Document, edit: Edit) -> Placed | None:
    """Carry an edit that only adds a keyword to a symbol's one call of a function.

    Upstream may have moved the call, or made several of it: all that the symbol has get it.
    """
    i1, i2, j1, j2 = edit
    old = statements.region.old
    before = [old.units[k] for k in old.units_touching(i1, i2)]
    mine = [edited.units[k] for k in edited.units_touching(j1, j2)]
    if len(before) != 1 or len(mine) != 1:
        return None
    added = _find_added(before[0], mine[0])
    if added is None:
        return None
    callee, argument = added
    if sum(callee_of(c) == callee for c in list_calls(statements.old)) != 1:
        return None
    name = keyword_of(argument)
    calls = [c for c in list_calls(statements.new) if callee_of(c) == callee]
    swaps = [
        _append(call, argument)
        for call in calls
        if name not in map(keyword_of, list_arguments(call))
    ]
    if not swaps:
        return None
    shown = f"{callee.decode(errors='replace')} has {len(calls)} calls now, each gets "
    return Placed("structural", tuple(swaps), f"{shown}`{(argument.text or b'').decode()}`")


def _find_added(before: Unit, mine: Unit) -> tuple[bytes, Node] | None:
    """The callee and the keyword argument by which a statement differs from what it was."""
    size = len(mine.tokens) - len(before.tokens)
    for call in list_calls([mine]):
        for argument in list_arguments(call):
            tokens = node_key(argument).split(b" ")
            if argument.type != "keyword_argument" or size not in (len(tokens), len(tokens) + 1):
                continue
            for at in range(len(before.tokens) + 1):
                rest = mine.tokens[:at] + mine.tokens[at + size :]
                if rest == before.tokens and b" ".join(tokens) in b" ".join(
                    mine.tokens[at : at + size]
                ):
                    return callee_of(call), argument
    return None


def _append(call: Node, argument: Node) -> Swap:
    arguments = call.child_by_field_name("arguments")
    assert arguments is not None
    there = list_arguments(call)
    return write_elements([argument], there, len(there), arguments)
