"""Whether a call fits a signature, and whether a signature still takes every call it took."""

from mindspeed_overlay.syntax import Call, Parameter, Signature


def explain_misfit(signature: Signature, call: Call, *, num_bound: int = 0) -> str:
    """Why Python would refuse a call, `""` where it would not, or where that can't be known.

    Args:
        num_bound: parameters that are already given: 1 for `self` of a bound method.
    """
    positional = signature.positional()[num_bound:]
    if len(call.positional) > len(positional) and not signature.has_varargs:
        return f"takes {len(positional)} positional arguments, {len(call.positional)} given"
    given = {p.name for p in positional[: len(call.positional)]}
    known = {p.name for p in _keywords(signature, positional)}
    for keyword in call.keywords:
        if keyword in given & known:
            return f"gets {keyword} twice, by position and by name"
        if keyword not in known and not signature.has_kwargs:
            return f"has no parameter {keyword}"
    return _explain_missing(signature, call, positional, given | set(call.keywords))


def _keywords(signature: Signature, positional: tuple[Parameter, ...]) -> list[Parameter]:
    plain = [p for p in positional if p.kind == "plain"]
    return plain + [p for p in signature.parameters if p.kind == "keyword-only"]


def _explain_missing(
    signature: Signature, call: Call, positional: tuple[Parameter, ...], given: set[str]
) -> str:
    if call.has_star_kwargs:
        return ""
    needed = [] if call.has_star_args else list(positional)
    needed += [p for p in signature.parameters if p.kind == "keyword-only"]
    missing = [p.name for p in needed if not p.has_default and p.name not in given]
    return f"needs {', '.join(missing)}" if missing else ""


def is_compatible(before: Signature, after: Signature) -> bool:
    """Whether every call that fits `before` fits `after` and reaches the same parameters."""
    old, new = before.positional(), after.positional()
    if before.has_varargs > after.has_varargs or before.has_kwargs > after.has_kwargs:
        return False
    if len(new) < len(old) or (before.has_varargs and len(new) != len(old)):
        return False
    if not all(_replaces(b, a) for b, a in zip(old, new, strict=False)):
        return False
    by_name = {p.name: p for p in after.parameters if p.kind in ("plain", "keyword-only")}
    keyword_only = [p for p in before.parameters if p.kind == "keyword-only"]
    if any(
        p.name not in by_name or p.has_default > by_name[p.name].has_default for p in keyword_only
    ):
        return False
    old_names = {p.name for p in before.parameters}
    added = [p for p in after.parameters if p.name not in old_names]
    return all(p.has_default or p.kind in ("variadic", "keywords") for p in added)


def _replaces(before: Parameter, after: Parameter) -> bool:
    if before.has_default > after.has_default:
        return False
    return before.kind == "positional-only" or (before.name, "plain") == (after.name, after.kind)


def find_shift(before: Signature, after: Signature, call: Call, *, num_bound: int = 0) -> str:
    """How a call that still fits hands its positional arguments to other parameters than before.

    `""` where it doesn't. A parameter that is only renamed in place is no shift.
    """
    old, new = (s.positional()[num_bound:] for s in (before, after))
    new_names = [p.name for p in new]
    for position, parameter in enumerate(old[: len(call.positional)]):
        if parameter.name in new_names and new_names[position] != parameter.name:
            return (
                f"gives positional argument {position + 1} to {new_names[position]},"
                f" which was {parameter.name}"
            )
    return ""
