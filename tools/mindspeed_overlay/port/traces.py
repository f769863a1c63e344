"""Whether upstream removed something for good: no name and no statement of it is left.

An edit of what is gone without a trace has nothing left to do, and is dropped with a word in the
report. Where a trace is left (the name is still used, the code stands elsewhere), a person decides.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mindspeed_overlay.module_index import module_name
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.syntax import MODULE

_LONG = 5
_FEW = 0.3


@dataclass(frozen=True, eq=False)
class Traces:
    """Looks for what is left of old code in a new tree."""

    files: Mapping[str, bytes]
    _known: dict[bytes, bool] = field(default_factory=dict)

    def has_symbol(self, old: Document, symbol: str, new: Document) -> bool:
        """Whether anything is left of a definition that the new file lacks."""
        outermost = symbol.partition(".")[0]
        if symbol == MODULE or new.span_of(outermost) is not None:
            return True
        return self.uses_name(outermost) or _shares_code(old, outermost, new)

    def has_file(self, path: str, symbols: list[str]) -> bool:
        """Whether anything is left of a file that the new tree lacks."""
        module = module_name(path)
        package, _, name = module.rpartition(".")
        parent = package.rpartition(".")[2]
        absolute = rf"\b{re.escape(module)}\b"
        beside = rf"from\s+[\w.]*\b{re.escape(parent)}\s+import[^#\n]*\b{name}\b"
        relative_import = rf"from\s+\.+{name}\s+import"
        pattern = re.compile(f"{absolute}|{beside}|{relative_import}".encode())
        siblings = path.rpartition("/")[0] + "/"
        for other, data in self.files.items():
            if not other.endswith(".py") or name.encode() not in data:
                continue
            found = pattern.search(data)
            relative = found is not None and found[0].lstrip().startswith(b"from .")
            if found and (not relative or other.startswith(siblings)):
                return True
        tops = {symbol.partition(".")[0] for symbol in symbols} - {MODULE}
        return any(self.uses_name(name) for name in tops)

    def uses_name(self, name: str) -> bool:
        """Whether any code of the tree has the name, comments and strings aside."""
        word = name.encode()
        if word not in self._known:
            pattern = re.compile(rb"\b%s\b" % re.escape(word))
            self._known[word] = any(
                path.endswith(".py") and pattern.search(data) and _has_token(data, word)
                for path, data in self.files.items()
            )
        return self._known[word]


def _has_token(data: bytes, word: bytes) -> bool:
    return any(word in unit.tokens for unit in Document(data).units)


def _shares_code(old: Document, symbol: str, new: Document) -> bool:
    """Whether much of a definition stands somewhere else in the file that it was in."""
    span = old.span_of(symbol)
    if span is None:
        return True
    keys = {old.units[k].key for k in old.units_in(*span) if len(old.units[k].tokens) > _LONG}
    kept = {unit.key for unit in old.units[: old.units_in(*span).start]}
    kept |= {unit.key for unit in old.units[old.units_in(*span).stop :]}
    left = {unit.key for unit in new.units} & (keys - kept)
    return len(left) > _FEW * max(len(keys - kept), 1)
