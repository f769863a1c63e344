"""The matrix as one HTML page: no network, sortable by a click, the reason behind each cell."""

import html
from collections.abc import Iterator

from mindspeed_overlay.status.cell import MEANING, SHORT, Cell, Matrix

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }
table { border-collapse: collapse } th, td { border: 1px solid #ddd; padding: .3rem .6rem }
th { background: #f4f4f4; text-align: left; position: sticky; top: 0 }
th button { all: unset; cursor: pointer } th button::after { content: " \\2195"; color: #999 }
td { vertical-align: top } summary { cursor: pointer }
pre { white-space: pre-wrap; max-width: 60em }
.verified { background: #b7e4c7 } .applies { background: #d8f3dc } .ported { background: #e3f2d0 }
.drift { background: #fff3bf } .conflict { background: #ffc9c9 } .absorbed { background: #d0ebff }
.native { background: #e5dbff } .not-claimed { color: #999 } .not-checked { background: #eee }
.legend span { padding: .1rem .5rem }
"""

# Sorts rows by the text of a column's cells; the second click turns the order round.
_SCRIPT = """
document.querySelectorAll('th button').forEach(button => button.addEventListener('click', () => {
  const cell = button.parentNode, body = cell.closest('table').tBodies[0], at = cell.cellIndex;
  const up = cell.dataset.up !== 'yes';
  cell.dataset.up = up ? 'yes' : 'no';
  const key = row => row.cells[at].dataset.key;
  [...body.rows].sort((a, b) => (up ? 1 : -1) * key(a).localeCompare(key(b)))
    .forEach(row => body.append(row));
}));
"""


def write_page(matrix: Matrix, *, title: str) -> bytes:
    """The page; the same matrix gives the same bytes."""
    return "\n".join(_write(matrix, html.escape(title))).encode()


def _write(matrix: Matrix, title: str) -> Iterator[str]:
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
    yield '<p class="legend">'
    for state, count in matrix.counts().items():
        if count:
            meaning = MEANING[state]  # type: ignore[index]
            yield (
                f'<span class="{state.replace(" ", "-")}" title="{html.escape(meaning)}">'
                f"{state}: {count}</span>"
            )
    yield "</p><table><thead><tr>"
    yield '<th data-up="no"><button>overlay</button></th>'
    for tag in matrix.releases:
        yield f"<th><button>{html.escape(tag.removeprefix('core_v'))}</button></th>"
    yield "</tr></thead><tbody>"
    for number, (overlay, summary) in enumerate(matrix.overlays):
        name = html.escape(overlay)
        key = f"{number:04d}"  # the order of the series is the first order
        yield f'<tr><td data-key="{key}" title="{html.escape(summary)}">{name}</td>'
        yield from (_write_cell(matrix.cells[overlay, tag]) for tag in matrix.releases)
        yield "</tr>"
    yield f"</tbody></table><script>{_SCRIPT}</script></body></html>\n"


def _write_cell(cell: Cell) -> str:
    state = cell.state.replace(" ", "-")
    order = f"{list(MEANING).index(cell.state):02d} {cell.overlay}"
    details = html.escape("\n".join((cell.reason, *cell.details)))
    return (
        f'<td class="{state}" data-key="{html.escape(order)}"><details>'
        f"<summary>{SHORT[cell.state]}</summary><pre>{details}</pre></details></td>"
    )
