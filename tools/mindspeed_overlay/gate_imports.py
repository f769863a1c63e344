"""Imports of `megatron.*`, `mindspeed.*` and relative ones must resolve inside the tree."""

from collections.abc import Iterator

from mindspeed_overlay.gate_finding import Finding
from mindspeed_overlay.module_index import ROOTS, ModuleIndex
from mindspeed_overlay.syntax import Import, parse_module


def find_broken_imports(index: ModuleIndex, path: str, *, allow_soft: bool) -> Iterator[Finding]:
    """The imports of one module that the tree can't satisfy.

    Args:
        path: of a module of the tree.
        allow_soft: pass imports whose failure the module itself handles (a try with ImportError)
            or that never run (TYPE_CHECKING). A new file serves several releases and may ask so;
            a patch is written for one release, where such an import would be dead text.
    """
    for found in parse_module(index.files[path]).imports:
        if allow_soft and found.guard:
            continue
        message = _explain(index, path, found)
        if message:
            target = f"{'.' * found.level}{found.module}:{found.name}"
            yield Finding("E604", message, target, found.line, found.symbol)


def _explain(index: ModuleIndex, path: str, found: Import) -> str:
    module = index.absolute(path, found)
    # A relative import that climbs out of the tree has no module at all.
    if not found.level and module.partition(".")[0] not in ROOTS:
        return ""
    presence = index.presence(module) if module else "missing"
    if found.level and module and presence == "elsewhere":
        presence = "missing"
    if presence == "missing":
        return f"no module {module or '.' * found.level} in the tree"
    if presence == "elsewhere" or found.name in ("", "*"):
        return ""
    if index.presence(f"{module}.{found.name}") == "elsewhere":
        return ""
    if index.binds(module, found.name, typing=found.guard == "typing"):
        return ""
    return f"{module} binds no name {found.name}"
