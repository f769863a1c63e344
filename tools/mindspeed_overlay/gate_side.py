"""One state of a tree, pristine or patched, and all that the gate finds in its modules."""

import re
from dataclasses import dataclass, field
from functools import cached_property

from mindspeed_overlay.gate_calls import find_misfits
from mindspeed_overlay.gate_duplicates import find_duplicates
from mindspeed_overlay.gate_finding import Finding
from mindspeed_overlay.gate_imports import find_broken_imports
from mindspeed_overlay.module_index import ModuleIndex, module_name
from mindspeed_overlay.resolve import Resolver
from mindspeed_overlay.tree import Files

_QUOTED = re.compile(r"`(\w+)`")


@dataclass(frozen=True, eq=False)
class Side:
    """A tree under analysis; `linted` is filled with the linter's findings by path."""

    files: Files
    linted: dict[str, list[Finding]] = field(default_factory=dict)

    @cached_property
    def index(self) -> ModuleIndex:
        """The modules of the tree by name."""
        return ModuleIndex(self.files)

    @cached_property
    def resolver(self) -> Resolver:
        """What names in the tree stand for."""
        return Resolver(self.index)

    def find(self, path: str, *, allow_soft: bool) -> list[Finding]:
        """All findings of one module; `allow_soft` as in `find_broken_imports`."""
        linted = [f for f in self.linted.get(path, ()) if not self._is_bound(path, f)]
        lines = {(f.code, f.line) for f in linted}
        own = [f for f in find_duplicates(self.files[path]) if (f.code, f.line) not in lines]
        imports = find_broken_imports(self.index, path, allow_soft=allow_soft)
        return [*linted, *own, *imports, *find_misfits(self.resolver, path)]

    def _is_bound(self, path: str, finding: Finding) -> bool:
        """Names the linter can't see: by star import or `__getattr__`, submodules in `__all__`."""
        name = _QUOTED.search(finding.message)
        if finding.code != "E602" or name is None:
            return False
        module = module_name(path)
        if "__all__" in finding.message:
            return self.index.binds(module, name[1])
        return bool(self.index.star_sources(module)) and self.index.binds(module, name[1])
