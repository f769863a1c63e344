"""Calls whose callee is known in the tree must fit its signature.

Reported only when certain. A callee is known through definitions, imports and re-exports, as a
method of `self`, `cls`, `super()` or a named class, as a constructor, or as `apply` of an autograd
function. Unknown decorators, metaclasses, computed names and rebound names end the look-up.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mindspeed_overlay.gate_finding import Finding
from mindspeed_overlay.module_index import module_name
from mindspeed_overlay.resolve import Absent, Definition, InModule, Line, Outside, Resolver, Target
from mindspeed_overlay.signatures import explain_misfit, find_shift
from mindspeed_overlay.syntax import Call, Module, Parameter, Signature, parse_module

# Decorators that leave the parameters as they are; the last part of the dotted name is compared.
_TRANSPARENT = frozenset(
    {
        *("staticmethod", "classmethod", "abstractmethod", "override", "deprecated", "wraps"),
        *("cache", "lru_cache", "contextmanager", "no_type_check"),
        *("no_grad", "enable_grad", "inference_mode", "compile", "disable"),
        *("jit_fuser", "internal_api", "experimental_fn"),
    }
)
# Bases from outside that neither make instances nor look names up in a way of their own.
_MODULE_BASES = frozenset(
    {"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module"}
)
_PLAIN_BASES = _MODULE_BASES | {
    *("builtins.object", "abc.ABC", "typing.Protocol", "typing.Generic"),
    "typing_extensions.Protocol",
}
_AUTOGRAD = frozenset(("torch.autograd.Function", "torch.autograd.function.Function"))
_DATACLASS = frozenset(("dataclasses.dataclass",))


@dataclass(frozen=True, slots=True)
class Contract:
    """A signature that a call must fit, and how many of its parameters are already given."""

    name: str
    module: str
    signature: Signature
    num_bound: int


def find_misfits(resolver: Resolver, path: str) -> Iterator[Finding]:
    """The calls of one module that a known signature refuses, and names its modules lack."""
    module = module_name(path)
    parsed = parse_module(resolver.index.files[path])
    for call in parsed.calls:
        target = find_target(resolver, module, parsed, call)
        if isinstance(target, Absent):
            if not _is_attribute(resolver, module, call):
                continue  # the import that should bring it is reported
            about = f"{call.callee}:{target.name}"
            message = f"{target.module} binds no name {target.name}, called as {call.callee}"
            yield Finding("E606", message, about, call.line, call.symbol)
        elif target is not None:
            reason = explain_misfit(target.signature, call, num_bound=target.num_bound)
            if reason:
                message = f"the call of {target.name} doesn't fit: {target.name} {reason}"
                yield Finding("E605", message, f"{call.callee}: {reason}", call.line, call.symbol)


def _is_attribute(resolver: Resolver, module: str, call: Call) -> bool:
    owner_name = call.callee.rpartition(".")[0]
    owner = resolver.resolve(module, call.symbol, owner_name) if owner_name else None
    return isinstance(owner, InModule)


def find_target(
    resolver: Resolver, module: str, parsed: Module, call: Call
) -> Contract | Absent | None:
    """The signature a call must fit, None where that is not certain."""
    head, _, rest = call.callee.partition(".")
    owner = _instance_class(module, parsed, call.symbol, head)
    if owner is not None:
        name, is_class_call = rest, head == "cls"
        if not name or "." in name:
            return None
        found = resolver.find_method(owner, name, skip=1 if head == "super()" else 0)
        return _as_callable(found, through="cls" if is_class_call else "self") if found else None
    if head in ("self", "cls", "super()"):
        return None
    owner_name, _, last = call.callee.rpartition(".")
    if owner_name:
        owner_target = resolver.resolve(module, call.symbol, owner_name)
        if isinstance(owner_target, Definition) and owner_target.symbol.kind == "class":
            return _class_attribute(resolver, owner_target, last)
    return _from_target(resolver, resolver.resolve(module, call.symbol, call.callee))


def _from_target(resolver: Resolver, target: Target) -> Contract | Absent | None:
    if isinstance(target, Absent):
        return target
    if not isinstance(target, Definition):
        return None
    if target.symbol.kind == "class":
        return _constructor(resolver, target)
    return _as_callable(target, through="")


def _instance_class(module: str, parsed: Module, scope: str, head: str) -> Definition | None:
    """The class that `self`, `cls` or `super()` in a scope belongs to, if nothing rebinds it."""
    if head not in ("self", "cls", "super()"):
        return None
    while scope:
        symbols = parsed.by_qualname.get(scope, ())
        classes = parsed.by_qualname.get(scope.rpartition(".")[0], ())
        if len(symbols) != 1 and any(s.kind == "function" for s in symbols):
            # A property and its setter share a scope; both have the same class.
            symbols = symbols[:1] if len(classes) == 1 else ()
        if not symbols or symbols[0].kind == "class":
            return None
        bound = parsed.bindings.get(scope, {}).get(head, ())
        if len(classes) == 1 and classes[0].kind == "class":
            parameters = symbols[0].signature.parameters if symbols[0].signature else ()
            is_first = bool(parameters) and parameters[0].name == head
            once = len({b.line for b in bound}) == len(parsed.by_qualname[scope]) == len(bound)
            fits = head == "super()" or (is_first and once)
            return Definition(module, classes[0].qualname, classes[0]) if fits else None
        if bound:
            return None
        scope = scope.rpartition(".")[0]
    return None


def _class_attribute(resolver: Resolver, owner: Definition, name: str) -> Contract | None:
    if name == "apply":
        return _autograd_apply(resolver, owner)
    found = resolver.find_method(owner, name)
    return _as_callable(found, through="class") if found is not None else None


def _as_callable(found: Definition, *, through: str) -> Contract | None:
    """Args: through: `self`, `cls`, `class` for a named class, `""` for a plain function."""
    symbol = found.symbol
    if symbol.kind != "function" or symbol.signature is None:
        return None
    kinds = {_last_name(d) for d in symbol.decorators}
    if not kinds <= _TRANSPARENT or "abstractmethod" in kinds:
        return None
    bound = "classmethod" in kinds or (through == "self" and "staticmethod" not in kinds)
    if symbol.name in ("__new__", "__init_subclass__", "__class_getitem__"):
        return None
    return Contract(symbol.qualname, found.module, symbol.signature, int(bound))


def _last_name(decorator: str) -> str:
    return decorator.partition("(")[0].rpartition(".")[2].strip()


def _autograd_apply(resolver: Resolver, owner: Definition) -> Contract | None:
    """`Function.apply(*args)` calls `forward(ctx, *args)`."""
    line = resolver.line_of(owner)
    outside = [e for e in line if isinstance(e, Outside)]
    if None in line or not any(e.dotted in _AUTOGRAD for e in outside):
        return None
    if resolver.find_method(owner, "setup_context") is not None:
        return None
    forward = resolver.find_method(owner, "forward")
    if forward is None or {_last_name(d) for d in forward.symbol.decorators} != {"staticmethod"}:
        return None
    signature = forward.symbol.signature
    name = f"{owner.qualname}.forward"
    return Contract(name, forward.module, signature, 1) if signature is not None else None


def _constructor(resolver: Resolver, owner: Definition) -> Contract | None:
    line = resolver.line_of(owner)
    for entry in line:
        if isinstance(entry, Outside) and entry.dotted in _PLAIN_BASES:
            continue
        if not isinstance(entry, Definition) or entry.symbol.class_keywords:
            return None
        parsed = resolver.index.parse(entry.module)
        if parsed is None or "__new__" in parsed.bindings.get(entry.qualname, {}):
            return None
    name = owner.qualname
    if _is_dataclass(resolver, owner):
        signature = _dataclass_signature(resolver, line)
        return Contract(name, owner.module, signature, 0) if signature is not None else None
    if owner.symbol.decorators:
        return None
    found = resolver.find_method(owner, "__init__")
    if found is None or found.symbol.decorators or found.symbol.signature is None:
        return None
    # An ancestor that is a dataclass makes an __init__ that no text shows.
    for entry in line[: line.index(_owner_of(line, found))]:
        if isinstance(entry, Definition) and entry.symbol.decorators:
            return None
    return Contract(name, found.module, found.symbol.signature, 1)


def _owner_of(line: Line, method: Definition) -> Definition:
    return next(
        e
        for e in line
        if isinstance(e, Definition)
        and (e.module, e.qualname) == (method.module, method.symbol.parent)
    )


def _is_dataclass(resolver: Resolver, owner: Definition) -> bool:
    if len(owner.symbol.decorators) != 1:
        return False
    (decorator,) = owner.symbol.decorators
    name = decorator.partition("(")[0].strip()
    target = resolver.resolve(owner.module, owner.symbol.parent, name)
    return isinstance(target, Outside) and target.dotted in _DATACLASS


def _dataclass_signature(resolver: Resolver, line: Line) -> Signature | None:
    """The signature that `@dataclass` makes of the fields of a class and its bases."""
    found: dict[str, Parameter] = {}
    for entry in reversed(line):
        if isinstance(entry, Outside):
            continue
        if entry is None or not _is_dataclass(resolver, entry):
            return None
        parsed = resolver.index.parse(entry.module)
        if parsed is None or "__init__" in parsed.bindings.get(entry.qualname, {}):
            return None
        if re.search(r"\b(init|kw_only)\s*=", entry.symbol.decorators[0]):
            return None
        for field in entry.symbol.fields:
            if "ClassVar" in field.annotation:
                continue
            default = field.default or ""
            if "KW_ONLY" in field.annotation or re.search(r"\b(init|kw_only)\s*=", default):
                return None
            is_call = re.match(r"(\w+\.)?field\s*\(", default) is not None
            optional = bool(default) and (not is_call or "default" in default)
            found[field.name] = Parameter(field.name, "plain", optional)
    return Signature((*found.values(),))


def find_shifts(before: Resolver, after: Resolver, path: str) -> Iterator[Finding]:
    """Unchanged calls that no longer reach what they reached in the pristine tree.

    Either the method is gone, or the call still fits and its positional arguments go to other
    parameters: one put in the middle of a signature silently takes what was meant for the next.
    """
    module = module_name(path)
    old, new = (parse_module(r.index.files[path]) for r in (before, after))
    known = {(c.callee, c.symbol, c.positional, c.keywords): c for c in old.calls}
    for call in new.calls:
        earlier = known.get((call.callee, call.symbol, call.positional, call.keywords))
        origin = find_target(before, module, old, earlier) if earlier is not None else None
        if not isinstance(origin, Contract):
            continue
        target = find_target(after, module, new, call)
        if isinstance(target, Contract):
            shift = _explain_shift(origin, target, call)
            if shift:
                message = f"the call of {target.name} {shift}"
                yield Finding("E605", message, f"{call.callee}: {shift}", call.line, call.symbol)
        elif target is None and _lacks_method(after, module, new, call):
            message = f"{origin.name} is gone, called as {call.callee}"
            yield Finding("E606", message, call.callee, call.line, call.symbol)


def _explain_shift(origin: Contract, target: Contract, call: Call) -> str:
    bound = target.num_bound
    if target.signature == origin.signature or bound != origin.num_bound:
        return ""
    if explain_misfit(target.signature, call, num_bound=bound):
        return ""
    return find_shift(origin.signature, target.signature, call, num_bound=bound)


def _lacks_method(resolver: Resolver, module: str, parsed: Module, call: Call) -> bool:
    """Whether the class that a call names certainly has no such method."""
    owner_name, _, name = call.callee.rpartition(".")
    owner: Target = _instance_class(module, parsed, call.symbol, owner_name)
    if owner is None and owner_name:
        owner = resolver.resolve(module, call.symbol, owner_name)
    if not isinstance(owner, Definition) or owner.symbol.kind != "class":
        return False
    for entry in resolver.line_of(owner):
        if isinstance(entry, Outside):
            if entry.dotted in _MODULE_BASES and not name.startswith("_"):
                return False  # torch.nn.Module has public names of its own
            if entry.dotted not in _PLAIN_BASES:
                return False
        elif entry is None or resolver.may_bind(entry, name):
            return False
    return True
