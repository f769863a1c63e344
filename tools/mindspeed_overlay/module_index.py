"""Which modules a source tree holds, and which names they bind.

Pure look-ups on text; nothing is imported. A question that text alone can't settle (a compiled
module, a module with `__getattr__`, a star import from outside the tree) is answered in the
module's favour.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from mindspeed_overlay.syntax import Import, Module, parse_module, parse_outline
from mindspeed_overlay.tree import Files

ROOTS = ("megatron", "mindspeed")

# Packages under `megatron` that a tree may lack without a fault: parts of upstream that not every
# source carries, and other distributions that share the namespace.
ELSEWHERE = frozenset(
    {
        *("bridge", "energon"),
        *("elastification", "inference", "legacy", "post_training", "rl", "training"),
    }
)

Presence = Literal["here", "missing", "elsewhere"]

_ALWAYS_BOUND = frozenset(
    ("__name__", "__file__", "__doc__", "__path__", "__dict__", "__spec__", "__package__")
)
_COMPILED = (".so", ".pyd")


def module_name(path: str) -> str:
    """The dotted name of the module at a path: `a/b/__init__.py` is `a.b`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True)
class ModuleIndex:
    """The modules of one tree by name."""

    files: Files

    @cached_property
    def paths(self) -> dict[str, str]:
        """Module name to path, for every module with source."""
        found = {module_name(p): p for p in self.files if p.endswith(".py")}
        return found | {module_name(p): p for p in self.files if p.endswith("/__init__.py")}

    @cached_property
    def _others(self) -> frozenset[str]:
        """Compiled modules and packages without `__init__.py`."""
        found: set[str] = set()
        for path in self.files:
            if path.endswith(_COMPILED):
                folder, _, name = path.rpartition("/")
                found.add(f"{folder.replace('/', '.')}.{name.partition('.')[0]}")
            if path.endswith((".py", *_COMPILED)):
                folder = path.rpartition("/")[0]
                while folder and (package := folder.replace("/", ".")) not in found:
                    found.add(package)
                    folder = folder.rpartition("/")[0]
        return frozenset(found)

    def parse(self, module: str) -> Module | None:
        """The structure of a module of the tree; None where there is no source of it."""
        path = self.paths.get(module)
        return None if path is None else parse_module(self.files[path])

    def outline(self, module: str) -> Module | None:
        """The same without function bodies; enough to know what a module gives to others."""
        path = self.paths.get(module)
        return None if path is None else parse_outline(self.files[path])

    def presence(self, module: str) -> Presence:
        """Whether the tree holds a module; `elsewhere` for what this tree can't answer for."""
        if module in self.paths or module in self._others:
            return "here"
        root, _, rest = module.partition(".")
        package = rest.partition(".")[0]
        if root not in ROOTS:
            return "elsewhere"
        carried = f"{root}.{package}" in self._others
        return "elsewhere" if package in ELSEWHERE and not carried else "missing"

    def absolute(self, importer: str, found: Import) -> str:
        """The module an import names, relative ones resolved. `importer` is a path."""
        if not found.level:
            return found.module
        parts = importer.removesuffix(".py").split("/")[: -found.level]
        return ".".join([*parts, found.module] if found.module else parts)

    def submodule(self, module: str, name: str) -> bool:
        """Whether the tree holds `name` as a module inside a package."""
        return self.presence(f"{module}.{name}") == "here"

    def binds(self, module: str, name: str, *, typing: bool = False) -> bool:
        """Whether `from module import name` works for a module that is here.

        Args:
            typing: the import itself stands under TYPE_CHECKING, so names bound only there count.
        """
        return name in _ALWAYS_BOUND or self._binds(module, name, typing, frozenset())

    def _binds(self, module: str, name: str, typing: bool, seen: frozenset[str]) -> bool:
        if module in seen:
            return False
        if self.submodule(module, name):
            return True
        parsed = self.outline(module)
        if parsed is None:
            return module not in self.paths and not self._is_namespace(module)
        bindings = parsed.top_level.get(name, ())
        if any(typing or b.source is None or b.source.guard != "typing" for b in bindings):
            return True
        return parsed.is_dynamic or any(
            self.presence(source) == "elsewhere"
            or (self.exports(source, name) and self._binds(source, name, typing, seen | {module}))
            for source in self.star_sources(module)
        )

    def _is_namespace(self, module: str) -> bool:
        prefix = module.replace(".", "/") + "/"
        return any(p.startswith(prefix) for p in self.files)

    def star_sources(self, module: str) -> list[str]:
        """The modules whose names a module takes with `import *`, in its own scope."""
        parsed = self.outline(module)
        imports = parsed.imports if parsed is not None else ()
        path = self.paths.get(module, "")
        return [self.absolute(path, i) for i in imports if i.name == "*"]

    def exports(self, module: str, name: str) -> bool:
        """Whether a star import of a module would take a name, if the module binds it."""
        parsed = self.outline(module)
        if parsed is not None and parsed.all_names is not None:
            return name in parsed.all_names
        # A computed __all__ may hold anything.
        return not name.startswith("_") or (parsed is not None and "__all__" in parsed.top_level)
