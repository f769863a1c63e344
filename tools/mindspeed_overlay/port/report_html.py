"""The report of a port as one page that opens without a network."""

from collections.abc import Iterator
from html import escape

from mindspeed_overlay.port.engine import Ported, summarize
from mindspeed_overlay.port.model import Piece
from mindspeed_overlay.port.report import describe_overlay
from mindspeed_overlay.port.threads import OverlayResult, PatchResult

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem;
border-bottom: 1px solid #8884; vertical-align: top } th { cursor: pointer }
pre { overflow-x: auto; padding: .6rem; background: #8881 } details { margin: .2rem 0 }
.bad { color: #b00020; font-weight: 600 } .new { color: #8a5a00 } .good { color: #1b6e3a }
.texts { display: grid; grid-template-columns: repeat(3, 1fr); gap: .5rem } h3 { margin: .2rem 0 }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd }
.bad { color: #ff6b81 } .new { color: #f0b866 } .good { color: #6fcf97 } }
"""
_SORT = """
for (const head of document.querySelectorAll('th')) head.addEventListener('click', () => {
  const at = head.cellIndex, body = head.closest('table').tBodies[0], rows = [...body.rows];
  const up = head.dataset.up !== '1'; head.dataset.up = up ? '1' : '0';
  const key = row => row.cells[at].textContent;
  rows.sort((a, b) => key(a).localeCompare(key(b)) * (up ? 1 : -1));
  body.append(...rows);
});
"""
_GOOD = ("exact", "offset")
_BAD = ("conflict", "gone", "blocked")


def render_html(ported: Ported) -> str:
    """The page; a row for each patch, the reason behind its outcome one click away."""
    tag = escape(ported.job.new.tag)
    counts = ", ".join(f"{n} {escape(name)}" for name, n in sorted(summarize(ported).items()))
    rows = "".join(row for overlay in ported.overlays for row in _rows(overlay))
    says = "".join(
        f"<li>{escape(o.overlay)}: {escape(describe_overlay(o, ported.job.new.tag))}</li>"
        for o in ported.overlays
    )
    steps = " → ".join(escape(tree.tag) for tree in ported.job.trees)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Port to {tag}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Port to {tag}</h1><p>{steps}</p><p>{counts}</p><ul>{says}</ul>"
        "<table><thead><tr><th>Overlay</th><th>File</th><th>Outcome</th><th>Why</th></tr></thead>"
        f"<tbody>{rows}</tbody></table><script>{_SORT}</script></body></html>\n"
    )


def _rows(overlay: OverlayResult) -> Iterator[str]:
    for patch in overlay.patches:
        outcome = "not checked" if patch.unchecked else patch.outcome
        kind = "bad" if outcome in _BAD else "good" if outcome in _GOOD else "new"
        yield (
            f"<tr><td>{escape(overlay.overlay)}</td><td>{escape(patch.target)}</td>"
            f'<td class="{kind}">{escape(outcome)}</td><td>{_explain(patch)}</td></tr>\n'
        )
    for problem in overlay.problems:
        yield (
            f"<tr><td>{escape(overlay.overlay)}</td><td></td>"
            f'<td class="bad">gate</td><td>{escape(problem)}</td></tr>\n'
        )


def _explain(patch: PatchResult) -> str:
    notes = "".join(f"<p>{escape(note)}</p>" for note in (*patch.notes, patch.unchecked) if note)
    shown = [piece for piece in patch.pieces if piece.outcome not in _GOOD]
    return notes + "".join(map(_explain_piece, shown))


def _explain_piece(piece: Piece) -> str:
    since = f" since {piece.since}" if piece.since else ""
    head = f"hunk {piece.hunk} in {piece.symbol}: {piece.outcome}{since}"
    commits = "".join(f"<li>upstream {escape(str(commit))}</li>" for commit in piece.commits)
    body = f"<p>{escape(piece.note)}</p>" + (f"<ul>{commits}</ul>" if commits else "")
    if piece.outcome == "conflict" and (piece.base or piece.ours or piece.theirs):
        texts = (("before", piece.base), ("upstream", piece.ours), ("overlay", piece.theirs))
        body += '<div class="texts">' + "".join(
            f"<div><h3>{name}</h3><pre>{escape(text.decode(errors='replace'))}</pre></div>"
            for name, text in texts
        )
        body += "</div>"
    return f"<details><summary>{escape(head)}</summary>{body}</details>"
