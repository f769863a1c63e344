"""What becomes of the targets of runtime patches, release by release."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mindspeed_overlay.drift.changes import Change, Kind
from mindspeed_overlay.drift.monkey import MonkeyPatches, Registration
from mindspeed_overlay.drift.symbols import Symbols
from mindspeed_overlay.drift.uses import Use
from mindspeed_overlay.module_index import ModuleIndex
from mindspeed_overlay.resolve import Definition, InModule, Resolver
from mindspeed_overlay.syntax import MODULE
from mindspeed_overlay.tree import Files

Missing = Literal["", "silent", "loud"]
"""`silent`: the module is there and gets an attribute that nobody reads. `loud`: the run stops."""


@dataclass(frozen=True)
class Target:
    """One patched name: where it is defined on the base release, and who patches it."""

    name: str
    use: Use
    is_class: bool
    registrations: tuple[Registration, ...]

    @property
    def is_replaced(self) -> bool:
        """Whether some registration replaces it whole; the others wrap it."""
        return any(r.effect == "replaces" for r in self.registrations)


@dataclass(frozen=True)
class Targets:
    """All targets: those that are functions, methods or classes of the base release, and the rest.

    Attributes:
        others: name to why it is not looked at.
    """

    known: tuple[Target, ...]
    others: Mapping[str, str]


@dataclass(frozen=True)
class Fate:
    """One target on one release."""

    target: Target
    kind: Kind
    missing: Missing
    change: Change

    @property
    def is_stale(self) -> bool:
        """Replaced whole, by a copy of what upstream no longer has."""
        return self.target.is_replaced and self.kind in ("body changed", "signature changed")

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        successors = [
            {"symbol": s.symbol, "similarity": s.similarity} for s in self.change.successors
        ]
        return {
            "target": self.target.name,
            "kind": self.kind,
            "missing": self.missing,
            "replaced": self.target.is_replaced,
            "stale": self.is_stale,
            "by": [f"{r.path}:{r.line}" for r in self.target.registrations],
            "successors": successors,
        }


def find_targets(patches: MonkeyPatches, base: Files) -> Targets:
    """Resolve every target on the release that the patches were written for."""
    resolver = _Targets(Resolver(ModuleIndex(base)))
    grouped: dict[str, list[Registration]] = {}
    for registration in patches.registrations:
        grouped.setdefault(registration.target, []).append(registration)
    known: list[Target] = []
    others: dict[str, str] = {}
    for name, registrations in sorted(grouped.items()):
        found = resolver.resolve(name)
        if isinstance(found, str):
            others[name] = found
            continue
        use = Use(found.module, found.qualname, "edits")
        is_class = found.symbol.kind == "class"
        known.append(Target(name, use, is_class, tuple(registrations)))
    return Targets(tuple(known), others)


@dataclass(frozen=True)
class _Targets:
    """Follows a target as the import system and `getattr` would."""

    resolver: Resolver

    def resolve(self, name: str) -> Definition | str:
        """The definition, or why there is none."""
        index = self.resolver.index
        owner, _, last = name.rpartition(".")
        if index.presence(owner) == "here":
            target = self.resolver.resolve(owner, MODULE, last)
            if isinstance(target, Definition):
                return target
            return self._explain_module_attribute(owner, last)
        module, rest = self._split(owner)
        if not module:
            return "its package is not in this tree" if self._is_elsewhere(name) else "no module"
        around = self.resolver.resolve(module, MODULE, rest)
        if isinstance(around, InModule):  # a module under another name, such as core.mpu
            return self.resolve(f"{around.module}.{last}")
        if not isinstance(around, Definition):
            return "no such class or object"
        found = self.resolver.find_method(around, last)
        if found is not None:
            return found
        if self.resolver.may_bind(around, last):
            return "a variable, or one of several definitions"
        is_dataclass = any("dataclass" in d for d in around.symbol.decorators)
        return "made by @dataclass" if is_dataclass and last == "__init__" else "no such attribute"

    def _explain_module_attribute(self, module: str, name: str) -> Definition | str:
        parsed = self.resolver.index.parse(module)
        if self.resolver.index.submodule(module, name):
            return "a module"
        if parsed is not None and (symbols := parsed.by_qualname.get(name)):
            return Definition(module, name, symbols[0])  # the arms of a try or an if
        bound = self.resolver.index.binds(module, name)
        return "a variable, or from outside" if bound else "no such attribute"

    def _split(self, dotted: str) -> tuple[str, str]:
        parts = dotted.split(".")
        for size in range(len(parts) - 1, 1, -1):
            module = ".".join(parts[:size])
            if module in self.resolver.index.paths:
                return module, ".".join(parts[size:])
        return "", ""

    def _is_elsewhere(self, name: str) -> bool:
        package = ".".join(name.split(".")[:2])
        return self.resolver.index.presence(package) == "elsewhere"

    def is_missing(self, name: str) -> Missing:
        """How a run notices that a target does not resolve."""
        found = self.resolve(name)
        if not isinstance(found, str) or found.startswith(("a ", "made by")):
            return ""
        owner, _, _ = name.rpartition(".")
        index = self.resolver.index
        module, rest = (owner, "") if index.presence(owner) == "here" else self._split(owner)
        around = self.resolver.resolve(module, MODULE, rest) if rest else InModule(module)
        return "silent" if module and isinstance(around, InModule) else "loud"


def follow_targets(targets: Iterable[Target], old: Symbols, new: Symbols) -> list[Fate]:
    """What became of each target from the base release to another.

    A target is there where its dotted name still leads to a definition, as the patch would find it,
    wherever that is; then the two definitions are compared.
    """
    there = _Targets(Resolver(ModuleIndex(new.files)))
    fates = []
    for target in targets:
        found = there.resolve(target.name)
        use = target.use
        if isinstance(found, Definition):
            moved = Use(found.module, found.qualname, "edits")
            before, after = old.state_of(use), new.state_of(moved)
            same_signature = before and after and before.signature == after.signature
            kind: Kind = "same" if before == after else "signature changed"
            if kind != "same" and same_signature:
                kind = "body changed"
            change = Change(use, kind, before, after)
            fates.append(Fate(target, kind, "", change))
            continue
        missing = there.is_missing(target.name)
        successors = tuple(new.find_successors(use, old)) if missing else ()
        # What is still there, and no definition any more, is used in another way.
        kind = "gone" if missing else "signature changed"
        change = Change(use, kind, old.state_of(use), None, successors)
        fates.append(Fate(target, kind, missing, change))
    return fates


def count_fates(fates: Iterable[Fate]) -> dict[str, int]:
    """The numbers of one release's row."""
    counter: Counter[str] = Counter()
    for fate in fates:
        group = "replaced" if fate.target.is_replaced else "wrapped"
        what = {"same": "same", "gone": "gone"}.get(fate.kind, "changed")
        counter.update([what, f"{group} {what}"])
        counter["signature changed"] += fate.kind == "signature changed"
        counter["gone silently"] += fate.missing == "silent"
    names = ("same", "changed", "gone", "signature changed", "gone silently")
    groups = [f"{g} {w}" for g in ("replaced", "wrapped") for w in ("same", "changed", "gone")]
    return {name: counter[name] for name in (*names, *groups)}


def guess_base(patches: MonkeyPatches, releases: Mapping[str, Files]) -> str:
    """The release on which most targets are definitions; of equal ones the oldest."""
    counts = {tag: len(find_targets(patches, files).known) for tag, files in releases.items()}
    return max(counts, key=lambda tag: counts[tag])
