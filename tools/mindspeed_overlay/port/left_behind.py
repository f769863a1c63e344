"""What upstream changed beside a carried edit that the edit would have to follow.

Such an edit fits and passes the gate, and is wrong: it is a conflict, with the reason.
"""

from collections.abc import Sequence

from tree_sitter import Node

from mindspeed_overlay.patch_diff import Edit
from mindspeed_overlay.port.align import align_units
from mindspeed_overlay.port.calls import callee_of, list_arguments, list_calls
from mindspeed_overlay.port.commute import bound_names
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.rename import list_names
from mindspeed_overlay.port.slots import Statements
from mindspeed_overlay.port.units import Unit, node_key


def explain_left_behind(statements: Statements, edited: Document, edit: Edit) -> str:
    """What upstream changed beside a carried edit that the edit would have to follow, or "".

    An addition that repeats the arguments of a call beside it stands for that call: where upstream
    passes more there, it may have to as well. An edit that takes a package's import away has to
    take those too that upstream added to it. A branch added to others that use what upstream
    computes for them by now may have to use it too.
    """
    i1, i2, j1, j2 = edit
    old = statements.region.old
    first = old.units_in(*statements.region.old_span).start
    touched = old.units_touching(i1, i2)
    mine = [edited.units[k] for k in edited.units_touching(j1, j2)]
    olds = [old.units[k] for k in touched]
    kept = align_units(olds, mine)
    added = [unit for m, unit in enumerate(mine) if m not in kept]
    indices = [k - first for k in touched]
    return (
        _explain_arguments(statements, added)
        or _explain_imports(statements, indices, mine)
        or _explain_branches(statements, indices, added)
    )


def _explain_arguments(statements: Statements, added: Sequence[Unit]) -> str:
    wanted = {_positional(call) for call in list_calls(added)}
    wanted = {arguments for arguments in wanted if len(arguments) > 2}
    if not wanted:
        return ""
    for k, unit in enumerate(statements.old):
        now = statements.find(k)
        if now is None or now.key == unit.key:
            continue
        for call in list_calls([unit]):
            arguments = _positional(call)
            if arguments not in wanted:
                continue
            for other in list_calls([now]):
                more = _positional(other)
                longer = len(more) > len(arguments) and more[: len(arguments)] == arguments
                if callee_of(other) == callee_of(call) and longer:
                    extra = more[len(arguments)].decode(errors="replace")
                    return f"upstream passes `{extra}` on beside it, where it repeats the arguments"
    return ""


def _positional(call: Node) -> tuple[bytes, ...]:
    return tuple(node_key(a) for a in list_arguments(call) if a.type != "keyword_argument")


def _explain_imports(statements: Statements, indices: Sequence[int], mine: Sequence[Unit]) -> str:
    kept = {_package(unit) for unit in mine}
    counterparts = {j for j in statements.to_new if j is not None}
    for k in indices:
        if not 0 <= k < len(statements.old) or statements.old[k].kind != "import_statement":
            continue
        package, at = _package(statements.old[k]), statements.to_new[k]
        if package in kept or at is None:
            continue
        for j in range(at + 1, len(statements.new)):
            if not statements.new[j].is_import:
                break
            if j not in counterparts and _package(statements.new[j]) == package:
                name = package.decode(errors="replace")
                return f"upstream imports more of {name} beside what it replaces"
    return ""


def _explain_branches(statements: Statements, indices: Sequence[int], added: Sequence[Unit]) -> str:
    if not any(unit.kind in ("if_statement", "elif_clause") for unit in added):
        return ""
    counterparts = {j for j in statements.to_new if j is not None}
    before = list_names(statements.old)
    ours = {token for unit in added for token in unit.tokens}
    for k in indices:
        at = statements.to_new[k] if 0 <= k < len(statements.old) else None
        if at is None or statements.new[at].kind != "if_statement":
            continue
        indent = statements.new[at].indent
        fresh = [
            name.encode()
            for j, unit in enumerate(statements.new[:at])
            if j not in counterparts and unit.indent == indent and not unit.is_import
            for name in bound_names(unit)
        ]
        branches = _split_branches(statements.new[at:])
        for name in fresh:
            users = sum(any(name in unit.tokens for unit in branch) for branch in branches)
            if users > 1 and name not in before | ours:
                shown = name.decode(errors="replace")
                return f"upstream computes `{shown}` for the branches beside the one that it adds"
    return ""


def _split_branches(units: Sequence[Unit]) -> list[list[Unit]]:
    """The branches of the `if` that some units begin with."""
    indent = units[0].indent
    found = [[units[0]]]
    for unit in units[1:]:
        if len(unit.indent) > len(indent):
            found[-1].append(unit)
        elif unit.indent == indent and unit.kind in ("elif_clause", "else_clause"):
            found.append([unit])
        else:
            break
    return found


def _package(unit: Unit) -> bytes:
    """The outermost package that an import names."""
    return unit.tokens[1] if unit.is_import and len(unit.tokens) > 1 else b""
