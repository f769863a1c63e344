"""The self-verification report as Markdown, to be pasted into a pull request."""

from collections.abc import Iterator

from mindspeed_overlay.evidence import Evidence


def write_page(evidence: Evidence) -> str:
    """The report; the same evidence gives the same bytes."""
    return "\n".join(_lines(evidence)) + "\n"


def _lines(evidence: Evidence) -> Iterator[str]:
    overlay = evidence.overlay
    yield f"# Self-verification report: {overlay.id}"
    yield ""
    yield f"{overlay.summary}."
    yield ""
    yield from ("| | | |", "|---|---|---|")
    for item in evidence.verdict:
        yield f"| {item.what} | {'ok' if item.good else 'NOT SHOWN'} | {item.found} |"
    yield ""
    yield "## What it is"
    yield ""
    yield f"- level {overlay.level}, requires {', '.join(overlay.requires) or 'nothing'}"
    for option in overlay.options:
        yield f"- option `{option.flag}`, field `{option.config}.{option.field}`"
    for hook in overlay.hooks:
        yield f"- hook at `{hook.point}`: `{hook.function}`, while {' or '.join(hook.when)}"
    for since, files in sorted(overlay.file_sets.items()):
        lines = sum(data.count(b"\n") for data in files.values())
        yield f"- {len(files)} new files, {lines} lines{f', since {since}' if since else ''}"
    for patched in evidence.patched:
        total = sum(patched.lines.values())
        size = f"{total} changed lines in {len(patched.lines)} files"
        yield f"- patches since {patched.since}: {size}"
    yield ""
    yield "## Releases"
    yield ""
    yield from ("| Release | State | Why | Digest |", "|---|---|---|---|")
    for cell in evidence.cells:
        digest = evidence.digests.get(cell.release, "")[:12]
        yield f"| {cell.release} | {cell.state} | {cell.reason} | `{digest}` |"
    yield ""
    yield "## Tests"
    yield ""
    yield from _describe_tests(evidence)
    yield ""
    yield "## Environment"
    yield ""
    yield from (f"- {name}: {found}" for name, found in evidence.environment.items())


def _describe_tests(evidence: Evidence) -> Iterator[str]:
    tests = evidence.tests
    if tests is None:
        yield "Not run."
        return
    yield f"{tests.passed} passed, {len(tests.failed)} failed, in {tests.seconds:g} s."
    if tests.failed or tests.skipped:
        yield ""
    yield from (f"- failed: {name}" for name in tests.failed)
    yield from (f"- {count} skipped: {reason}" for reason, count in tests.skipped.items())
