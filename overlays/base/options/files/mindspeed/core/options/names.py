"""Names that a config does not have: typos of options, and options that this build lacks.

A dataclass refuses an unknown keyword by itself, and takes any attribute. So keywords only get a
better message, and attributes are looked at when a model is built.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Iterable
from typing import Any

from mindspeed.core.options.table import ABSENT_FIELDS, options_of

# A framework may hang attributes of its own on a config; only a slip of the pen is an error.
_CLOSE = 0.88


class _InitSignature:
    """`inspect.signature` of a class looks at `__new__` first; this points it to `__init__`."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        signature = inspect.signature(owner.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def guard_keywords(cls: type) -> None:
    """Let `cls` and its subclasses explain a keyword that their `__init__` is about to refuse."""

    def __new__(kind: type, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            _refuse_keywords(kind, kwargs)
        following = super(cls, kind).__new__
        if following is object.__new__:
            return following(kind)
        return following(kind, *args, **kwargs)

    cls.__new__ = __new__  # type: ignore[method-assign, assignment]
    cls.__signature__ = _InitSignature()  # type: ignore[attr-defined]


def _refuse_keywords(kind: type, keywords: Iterable[str]) -> None:
    unknown = [name for name in keywords if not hasattr(kind, name) and name not in _fields(kind)]
    if not unknown:
        return
    parameters = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    remarks = [remark for name in unknown if name not in parameters
               for remark in [explain(name, kind)] if remark]  # fmt: skip
    if remarks:
        raise TypeError(f"{kind.__name__}(): " + "; ".join(remarks))


def _fields(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = getattr(kind, "__dataclass_fields__", {})
    return found


def find_stray_attributes(config: Any) -> list[str]:
    """Attributes set on a config that no field takes up, where that is surely not meant.

    Returns:
        A remark for each near-miss of an option, and for each option of an absent overlay that is
        set to something true.
    """
    kind = type(config)
    if not dataclasses.is_dataclass(kind):
        return []
    declared = _fields(kind)
    remarks = []
    for name, value in vars(config).items():
        if name in declared or hasattr(kind, name) or (name in ABSENT_FIELDS and not value):
            continue
        remark = explain(name, kind)
        if remark:
            remarks.append(remark)
    return remarks


def explain(name: str, kind: type) -> str:
    """What an unknown name probably means; empty if there is nothing to say."""
    if name in ABSENT_FIELDS:
        overlay, flag = ABSENT_FIELDS[name]
        return (
            f"{name} ({flag}) belongs to {overlay}, which is not in this build: build with "
            f"`mindspeed-overlay build --feature {overlay}`, or leave it out"
        )
    fields = [option.field for option in options_of(kind)] + list(ABSENT_FIELDS)
    near = difflib.get_close_matches(name, fields, n=1, cutoff=_CLOSE)
    return f"there is no {name}, did you mean {near[0]}?" if near else ""
