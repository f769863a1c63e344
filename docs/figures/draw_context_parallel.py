"""Draw the schedules of context parallelism, from the schedules themselves.

    python docs/figures/draw_context_parallel.py

writes one SVG for each algorithm beside this file. A test compares them with what is committed.
"""

import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_HERE = Path(__file__).parent
_OVERLAYS = _HERE.parents[1] / "overlays"
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#76b7b2", "#edc948", "#9c755f")
_CELL, _ROW, _LEFT, _TOP = 112, 46, 70, 52


class Svg:
    """Collects shapes and writes them with a size around."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f"<title>{title}</title>",
            '<defs><marker id="tip" markerWidth="6" markerHeight="6" refX="5" refY="3" '
            'orient="auto"><path d="M0,0 L6,3 L0,6 z" fill="#555"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]
        self.text(10, 18, title, weight="bold")

    def text(self, x: float, y: float, words: str, *, weight: str = "normal") -> None:
        """Words that begin at a point."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" font-weight="{weight}">{words}</text>')

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str, *, opacity: float = 1.0
    ) -> None:
        """A filled rectangle with a thin border."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" '
            f'fill-opacity="{opacity:g}" stroke="#888" stroke-width="0.6"/>'
        )

    def triangle(self, x: float, y: float, size: float, fill: str) -> None:
        """The lower left half of a square."""
        points = f"{x:g},{y:g} {x:g},{y + size:g} {x + size:g},{y + size:g}"
        self._parts.append(f'<polygon points="{points}" fill="{fill}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A thin arrow."""
        self._parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#555" '
            'stroke-width="0.9" stroke-opacity="0.7" marker-end="url(#tip)"/>'
        )

    def finish(self) -> str:
        """The document."""
        return "\n".join([*self._parts, "</svg>", ""])


@contextmanager
def open_overlays() -> Iterator[SimpleNamespace]:
    """The modules of the overlays, imported from a folder that holds all their files."""
    names = [
        "schedule",
        "ring",
        "double_ring",
        "adaptive",
        "placement",
        "shard",
        "tiles",
        "kv_allgather",
    ]
    with tempfile.TemporaryDirectory() as folder:
        roots = sorted(_OVERLAYS.glob("context-parallel/*/files"))
        for files in [_OVERLAYS / "base/ascend/files", *roots]:
            shutil.copytree(files, folder, dirs_exist_ok=True)
        sys.path.insert(0, folder)
        try:
            package = "mindspeed.core.context_parallel."
            found = {name: importlib.import_module(package + name) for name in names}
            yield SimpleNamespace(**found)
        finally:
            sys.path.remove(folder)
            for name in [name for name in sys.modules if name.split(".")[0] == "mindspeed"]:
                del sys.modules[name]


def draw_schedule(schedule: Any, title: str, m: SimpleNamespace, *, causal: bool) -> str:
    """Ranks down, steps across; a cell is a block, its squares are what is computed of it."""
    p, steps = schedule.num_ranks, schedule.steps
    shards = [m.shard.DenseShard(2)] * len(schedule.owners)
    legend = ["Arrows: messages, launched with the step they leave from."]
    if causal:
        legend += [
            "In a cell: own two chunks of queries down, the block's two chunks of keys across;"
        ]
        legend += ["coloured is computed, white never."]
    width = max(_LEFT + len(steps) * _CELL + 10, 540)
    svg = Svg(width, _TOP + p * _ROW + 14 + 20 * len(legend), title)
    for index in range(len(steps)):
        svg.text(_LEFT + index * _CELL + 8, _TOP - 10, f"step {index}")
    arrows = []
    for rank in range(p):
        y = _TOP + rank * _ROW
        svg.text(10, y + 25, f"rank {rank}")
        tiles = m.tiles.tile_causal(rank, schedule.owners, shards[0], shards)
        for index, step in enumerate(steps):
            x = _LEFT + index * _CELL
            if not step.attends[rank]:
                svg.rect(x, y, _CELL - 34, _ROW - 10, "white")
                svg.text(x + 22, y + 23, "idle")
            for block in step.attends[rank]:
                colour = _COLOURS[schedule.owners[block] % len(_COLOURS)]
                svg.rect(x, y, _CELL - 34, _ROW - 10, colour, opacity=0.25)
                svg.text(x + 38, y + 23, f"KV {block}")
                _draw_tiles(svg, x + 4, y + 4, tiles(block) if causal else [], colour, m)
    for index, step in enumerate(steps):
        for move in step.moves:
            visits = {rank: number for number, rank in schedule.visits[move.block]}
            x1 = _LEFT + index * _CELL + _CELL - 34
            x2 = _LEFT + visits[move.dst] * _CELL
            arrows.append((x1, move.src, x2, move.dst))
    for x1, src, x2, dst in arrows:
        svg.arrow(x1, _TOP + src * _ROW + 18, x2 - 1, _TOP + dst * _ROW + 18)
    for line, words in enumerate(legend):
        svg.text(10, _TOP + p * _ROW + 18 + 20 * line, words)
    return svg.finish()


def _draw_tiles(svg: Svg, x: float, y: float, tiles: Any, colour: str, m: SimpleNamespace) -> None:
    """Two chunks of queries down, two of keys across, 14 pixels each; all of them without tiles."""
    part = m.shard.Part
    halves = {part.ALL: (0, 1), part.FIRST: (0,), part.LAST: (1,)}
    for row in (0, 1):
        for column in (0, 1):
            svg.rect(x + 14 * column, y + 14 * row, 14, 14, "white")
    if not tiles:
        svg.rect(x, y, 28, 28, colour)
    for tile in tiles:
        if tile.mask.causal:
            svg.triangle(x, y, 28, colour)
            continue
        for row in halves[tile.queries]:
            for column in halves[tile.keys]:
                svg.rect(x + 14 * column, y + 14 * row, 14, 14, colour)


def draw_exchange(size: int, ulysses: int, title: str, m: SimpleNamespace) -> str:
    """Chunks across, and inside a chunk the heads down: what each rank has before and after."""
    placement = m.placement.place_zigzag(2 * size, size)
    width, half = 26, 2 * size * 26 + 40
    ring = size // ulysses
    svg = Svg(_LEFT + 2 * half, _TOP + size * _ROW + (50 if ring > 1 else 30), title)
    svg.text(_LEFT, _TOP - 10, "before: own chunks, all heads")
    svg.text(_LEFT + half, _TOP - 10, "after the all-to-all: own heads")
    for rank in range(size):
        y = _TOP + rank * _ROW
        svg.text(10, y + 22, f"rank {rank}")
        first = rank // ulysses * ulysses
        held = [a for peer in range(first, first + ulysses) for a, _ in placement.ranges[peer]]
        own = [start for start, _ in placement.ranges[rank]]
        for chunk in range(2 * size):
            for x0, here, top, part in (
                (_LEFT, chunk in own, 0, 1.0),
                (_LEFT + half, chunk in held, rank - first, 1.0 / ulysses),
            ):
                x, height = x0 + chunk * width, _ROW - 12
                svg.rect(x, y, width - 2, height, "white")
                if here:
                    colour = _COLOURS[rank % len(_COLOURS)]
                    svg.rect(x, y + top * part * height, width - 2, part * height, colour)
                svg.text(x + 7, y + 22, str(chunk))
    svg.text(10, _TOP + size * _ROW + 16, "Height within a chunk: share of the heads.")
    if ring > 1:
        rings = " and ".join(
            ", ".join(map(str, range(first, size, ulysses))) for first in range(ulysses)
        )
        svg.text(10, _TOP + size * _ROW + 36, f"Then each a ring of {ring}: ranks {rings}.")
    return svg.finish()


def draw_gather(size: int, title: str, m: SimpleNamespace) -> str:
    """For each rank its chunks of queries, and how many of all keys each of them sees."""
    import torch

    width = 26
    svg = Svg(_LEFT + 60 + 2 * size * width + 30, _TOP + size * _ROW + 30, title)
    svg.text(_LEFT, _TOP - 10, "queries")
    svg.text(_LEFT + 70, _TOP - 10, "keys seen, of all gathered chunks")
    for rank in range(size):
        y = _TOP + rank * _ROW
        svg.text(10, y + 22, f"rank {rank}")
        calls = m.kv_allgather.call_causal(
            rank, (0, 2 * size), size, packed=False, device=torch.device("cpu")
        )
        chunks = (rank, 2 * size - 1 - rank)
        for row, (chunk, call) in enumerate(zip(chunks, calls, strict=True)):
            top = y + row * 18
            svg.text(_LEFT + 8, top + 12, f"chunk {chunk}")
            for key in range(2 * size):
                colour = _COLOURS[min(key, 2 * size - 1 - key) % len(_COLOURS)]
                x = _LEFT + 70 + key * width
                if key < call.keys - 1:
                    svg.rect(x, top, width - 2, 16, colour)
                elif key < call.keys:
                    svg.rect(x, top, width - 2, 16, "white")
                    svg.triangle(x, top, 16, colour)
                else:
                    svg.rect(x, top, width - 2, 16, "white")
    svg.text(10, _TOP + size * _ROW + 16, "Colour: the rank that the chunk of keys comes from.")
    return svg.finish()


def draw_all() -> dict[str, str]:
    """File name to picture."""
    needs = (
        (True, False, False, False),
        (True, True, False, False),
        (False, True, True, False),
        (True, False, True, True),
    )
    with open_overlays() as m:
        ring, double = m.ring.schedule_ring(4), m.double_ring.schedule_double_ring(4, 2)
        adaptive = m.adaptive.schedule_needed(needs)
        return {
            "cp-ring.svg": draw_schedule(ring, "Ring attention, causal", m, causal=True),
            "cp-double-ring.svg": draw_schedule(
                double, "Double ring, windows of 2, causal", m, causal=True
            ),
            "cp-adaptive.svg": draw_schedule(
                adaptive,
                "Adaptive: own block first, then two rounds for a sparse mask",
                m,
                causal=False,
            ),
            "cp-ulysses.svg": draw_exchange(4, 4, "Ulysses", m),
            "cp-hybrid.svg": draw_exchange(4, 2, "Hybrid: Ulysses 2, ring 2", m),
            "cp-kv-all-gather.svg": draw_gather(4, "Keys and values gathered, causal", m),
        }


def main() -> None:
    """Write the pictures."""
    for name, picture in draw_all().items():
        (_HERE / name).write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
