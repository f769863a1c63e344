"""docs/features.md: what serves each feature of MindSpeed (`mindspeed-overlay show --features`)."""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed_overlay.overlay import Overlay

_DATA = Path(__file__).with_name("mindspeed_features.toml")
_PARTS = {
    "A": "Base adaptation",
    "B": "Affinity and rewrites without a flag",
    "C": "Attention",
}
_COLUMNS = "| Feature | What it does | State | By | Releases |\n|---|---|---|---|---|\n"
_HEAD = """\
# Features of MindSpeed

Written by `mindspeed-overlay show --features > docs/features.md` from
`tools/mindspeed_overlay/mindspeed_features.toml` and the overlays: edit those, not this page. Each
feature of base adaptation, affinity and attention has a row.

`overlay`: built here. `native`: Megatron has it itself. `not applicable`: there is nothing to do
here. `not built`: it is missing, with what that means. Flags of all features are in
[migrating-from-mindspeed.md](migrating-from-mindspeed.md).
"""


@dataclass(frozen=True)
class Original:
    """A feature of MindSpeed. Of the last three, the first that is not empty tells its state."""

    part: str
    name: str
    what: str
    overlays: tuple[str, ...] = ()
    native: str = ""
    absent: str = ""
    open: str = ""


def load_originals(path: Path = _DATA) -> tuple[Original, ...]:
    """The committed list."""
    tables: list[dict[str, Any]] = tomllib.loads(path.read_text("utf-8"))["feature"]
    return tuple(
        Original(**{**table, "overlays": tuple(table.get("overlays", ()))}) for table in tables
    )


def describe_features(
    originals: Iterable[Original], overlays: Iterable[Overlay], tags: tuple[str, ...]
) -> str:
    """The page, in Markdown.

    Args:
        originals: in the order of the page.
        overlays: of the set.
        tags: all releases, oldest first.

    Raises:
        ValueError: a feature that nothing is said about.
    """
    known = {overlay.id: overlay for overlay in overlays}
    listed = tuple(originals)
    return _HEAD + "".join(
        line
        for part, title in _PARTS.items()
        for line in (
            f"\n## {title}\n\n{_COLUMNS}",
            *_list_rows([o for o in listed if o.part == part], known, tags),
        )
    )


def _list_rows(
    originals: Iterable[Original], known: dict[str, Overlay], tags: tuple[str, ...]
) -> Iterator[str]:
    for original in originals:
        state, by, releases = _find_state(original, known, tags)
        yield f"| {original.name} | {original.what} | {state} | {by} | {releases} |\n"


def _find_state(
    original: Original, known: dict[str, Overlay], tags: tuple[str, ...]
) -> tuple[str, str, str]:
    """State, by what, and on which releases."""
    built = [known[name] for name in original.overlays if name in known]
    if built:
        by = ", ".join(f"`{overlay.id}`" for overlay in built)
        return "overlay", by, "; ".join(dict.fromkeys(_span(overlay, tags) for overlay in built))
    for state, text in (
        ("native", original.native),
        ("not applicable", original.absent),
        ("not built", original.open),
    ):
        if text:
            return state, text, "-"
    raise ValueError(f"mindspeed_features.toml: {original.name} names no overlay of the set")


def _span(overlay: Overlay, tags: tuple[str, ...]) -> str:
    served = [tag.removeprefix("core_v") for tag in tags if overlay.serves(tag, tags)]
    return "all" if len(served) == len(tags) else ", ".join(served)
