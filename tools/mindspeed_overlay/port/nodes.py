"""Merge three states of one statement on its syntax tree.

The overlay changed a statement, upstream changed it too. Where they changed different parts of it,
or added different elements to one list, both changes are kept. The result is upstream's text with
the overlay's parts put in, so its layout is upstream's.
"""

from collections.abc import Sequence
from itertools import count

from tree_sitter import Node

from mindspeed_overlay.port.align import align_lines
from mindspeed_overlay.port.model import Swap
from mindspeed_overlay.port.units import Unit, node_key, uncast

_LISTS = frozenset(
    [
        "parameters",
        "lambda_parameters",
        "argument_list",
        "list",
        "tuple",
        "dictionary",
        "set",
        "import_from_statement",
        "import_statement",
    ]
)
# An element without one of these is told from its neighbours by its place alone.
_NAMED = frozenset(
    [
        "keyword_argument",
        "default_parameter",
        "typed_default_parameter",
        "pair",
        "dotted_name",
        "aliased_import",
        "dictionary_splat",
        "dictionary_splat_pattern",
    ]
)


class MergeConflictError(Exception):
    """Both sides changed one part; the message says which."""


def merge_units(base: Unit, edited: Unit, new: Unit) -> tuple[Swap, ...]:
    """What to swap in the new text so that it also has the overlay's change.

    Raises:
        MergeConflictError: both changed the same part.
    """
    swaps: list[Swap] = []
    _merge_children(base.nodes, edited.nodes, new.nodes, swaps)
    return tuple(swaps)


def _merge(base: Node, edited: Node, new: Node, swaps: list[Swap]) -> None:
    before, ours, theirs = node_key(base), node_key(edited), node_key(new)
    if before == ours or ours == theirs:
        return
    if before == theirs:
        swaps.append(Swap(new.start_byte, new.end_byte, edited.text or b""))
        return
    if (inner := uncast(new)) is not None and uncast(base) is None:
        _merge(base, edited, inner, swaps)
        return
    if base.type == edited.type == new.type and base.type in _LISTS:
        _merge_list(base, edited, new, swaps)
        return
    if base.type == edited.type == new.type and base.children:
        _merge_children(base.children, edited.children, new.children, swaps)
        return
    raise MergeConflictError(f"both changed `{_show(before)}`")


def _merge_children(
    base: Sequence[Node], edited: Sequence[Node], new: Sequence[Node], swaps: list[Swap]
) -> None:
    sides = [[n for n in nodes if n.type != "comment"] for nodes in (base, edited, new)]
    if not len(sides[0]) == len(sides[1]) == len(sides[2]):
        shape = b" ".join(map(node_key, sides[0]))
        raise MergeConflictError(f"both changed the shape of `{_show(shape)}`")
    for b, e, n in zip(*sides, strict=True):
        _merge(b, e, n, swaps)


def _merge_list(base: Node, edited: Node, new: Node, swaps: list[Swap]) -> None:
    old, ours, theirs = _elements(base), _elements(edited), _elements(new)
    if base.type.startswith("import_from") and node_key(old[0]) != node_key(theirs[0]):
        raise MergeConflictError("the import is from another module now")
    to_ours, to_theirs = (_align(old, side) for side in (ours, theirs))
    for k, (i, j) in enumerate(zip(to_ours, to_theirs, strict=True)):
        if i is None and j is not None and node_key(theirs[j]) == node_key(old[k]):
            swaps.append(_drop(theirs, j))
        elif i is None and j is not None:
            raise MergeConflictError(f"upstream changed `{_show(node_key(old[k]))}`, which goes")
        elif i is not None and j is None and node_key(ours[i]) != node_key(old[k]):
            raise MergeConflictError(f"upstream dropped `{_show(node_key(old[k]))}`")
        elif i is not None and j is not None:
            _merge(old[k], ours[i], theirs[j], swaps)
    taken = set(to_ours)
    present = {node_key(n) for n in theirs}
    added = [n for i, n in enumerate(ours) if i not in taken and node_key(n) not in present]
    if added:
        _insert(added, (old, ours, theirs), (to_ours, to_theirs), new, swaps)


def _insert(
    added: list[Node],
    sides: tuple[list[Node], list[Node], list[Node]],
    maps: tuple[list[int | None], list[int | None]],
    new: Node,
    swaps: list[Swap],
) -> None:
    """Put each run of added elements after the element it follows, and what upstream put there."""
    old, ours, theirs = sides
    to_ours, to_theirs = maps
    names = {_name(n) for n in theirs}
    for node in added:
        if node.type in _NAMED and _name(node) in names:
            raise MergeConflictError(f"both added `{_show(_name(node))}`")
    from_ours = {i: k for k, i in enumerate(to_ours) if i is not None}
    runs: dict[int, list[Node]] = {}
    for i, node in enumerate(ours):
        if node in added:
            before = next((m for m in range(i - 1, -1, -1) if m in from_ours), -1)
            runs.setdefault(from_ours[before] if before >= 0 else -1, []).append(node)
    for k, nodes in runs.items():
        at = to_theirs[k] if k >= 0 else -1
        following = to_theirs[k + 1] if k + 1 < len(old) else len(theirs)
        if at is None and following is None:
            raise MergeConflictError(f"the neighbours of `{_show(node_key(nodes[0]))}` are gone")
        end = following if following is not None else (at or 0) + 1
        start = at + 1 if at is not None else end
        if start > end:
            raise MergeConflictError("the elements stand in another order now")
        between = theirs[start:end]
        by_name = [all(n.type in _NAMED for n in side) for side in (between, nodes)]
        if between and not any(by_name):
            raise MergeConflictError(f"both added beside `{_show(node_key(between[0]))}`")
        if between and not by_name[1]:
            end = start  # what has a place goes before what has a name
        swaps.append(write_elements(nodes, theirs, end, new))


def write_elements(nodes: list[Node], theirs: list[Node], at: int, new: Node) -> Swap:
    """Put elements before the one at `at` of a list, laid out as the others are."""
    texts = [n.text or b"" for n in nodes]
    if at > 0 and not (new.type == "import_from_statement" and at == 1):
        place, before = theirs[at - 1].end_byte, theirs[at - 1]
        gap = _gap(before, new)
        return Swap(place, place, b"".join(b"," + gap + text for text in texts))
    if at < len(theirs):
        place = theirs[at].start_byte
        gap = _gap(theirs[at], new)
        return Swap(place, place, b"".join(text + b"," + gap for text in texts))
    place = new.end_byte - 1
    return Swap(place, place, b", ".join(texts))


def _gap(element: Node, whole: Node) -> bytes:
    """What stands between elements: a line break and indent where each has its own line."""
    if whole.start_point[0] == element.start_point[0]:
        return b" "
    column = element.start_point[1]
    return b"\n" + b" " * column


def _drop(theirs: list[Node], at: int) -> Swap:
    node = theirs[at]
    if at + 1 < len(theirs):
        return Swap(node.start_byte, theirs[at + 1].start_byte, b"")
    if at > 0:
        return Swap(theirs[at - 1].end_byte, node.end_byte, b"")
    return Swap(node.start_byte, node.end_byte, b"")


def _elements(node: Node) -> list[Node]:
    return [n for n in node.named_children if n.type != "comment"]


def _align(old: list[Node], new: list[Node]) -> list[int | None]:
    """By equal text first, then by name, then by place where as many stand between."""
    found = align_lines([node_key(n) for n in old], [node_key(n) for n in new])
    taken = {j for j in found if j is not None}
    names = {_name(n): j for j, n in enumerate(new) if j not in taken and n.type in _NAMED}
    for i, node in enumerate(old):
        if found[i] is None and node.type in _NAMED and _name(node) in names:
            found[i] = names[_name(node)]
    for i in range(len(old)):
        low = next((found[k] for k in range(i - 1, -1, -1) if found[k] is not None), -1)
        steps = next((n for n in count(1) if i + n >= len(old) or found[i + n] is not None), 1)
        high = found[i + steps] if i + steps < len(old) else len(new)
        same = low is not None and high is not None and high - low == steps + 1
        if found[i] is None and same and low is not None and new[low + 1].type == old[i].type:
            found[i] = low + 1
    return found


def _name(node: Node) -> bytes:
    for key in ("name", "key"):
        if (child := node.child_by_field_name(key)) is not None:
            return node_key(child)
    first = node.named_children[0] if node.named_children else None
    return node_key(first) if first is not None and node.type != "dotted_name" else node_key(node)


def _show(text: bytes) -> str:
    shown = text.decode(errors="replace")
    return shown if len(shown) <= 60 else shown[:57] + "..."
