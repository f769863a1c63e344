"""A new overlay: the files to start from, the analysis of its target, the steps to take."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from mindspeed_overlay.errors import DefinitionError, OverlayError, Problem, UsageError
from mindspeed_overlay.pins import Pins
from mindspeed_overlay.source import open_source
from mindspeed_overlay.staging import write_atomically
from mindspeed_overlay.syntax import parse_module
from mindspeed_overlay.tree import sha256

_NAME = r"[a-z0-9]+(-[a-z0-9]+)*"


def write_scaffold(overlays: Path, overlay_id: str, summary: str, pins: Pins) -> list[Path]:
    """Write a new overlay's first files and add it to the series.

    Raises:
        UsageError: E202, the id is no `<family>/<feature>`.
        DefinitionError: E408, the overlay is there already, or the folder cannot be written.
    """
    if not re.fullmatch(f"{_NAME}/{_NAME}", overlay_id):
        message = (
            f"{overlay_id!r} is not `<family>/<feature>` in lower case, like fusions/fused-gelu"
        )
        raise UsageError(Problem(code="E202", message=message))
    family, _, feature = overlay_id.partition("/")
    folder = overlays / overlay_id
    if folder.exists():
        raise DefinitionError(
            Problem(code="E408", overlay=overlay_id, message=f"{folder} is there")
        )
    module = feature.replace("-", "_")
    repository = overlays.parent
    files = {
        folder / "overlay.toml": _overlay_toml(overlay_id, summary, module, pins.releases[0].tag),
        folder / "files/mindspeed/core" / family.replace("-", "_") / f"{module}.py": _module(
            module
        ),
        repository / "tests/features" / family / f"test_{module}.py": _test(overlay_id, module),
        repository / "docs/features" / f"{feature}.md": f"# {feature}\n\n{summary}\n",
    }
    taken = [path for path in files if path.exists()]
    if taken:
        raise DefinitionError(
            *(Problem(code="E408", overlay=overlay_id, message=f"{p} is there") for p in taken)
        )
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        series = overlays / "series"
        lines = series.read_text("utf-8").rstrip("\n") if series.is_file() else "revision 1"
        write_atomically(series, f"{lines}\n{overlay_id}\n".encode())
    except OSError as error:
        hint = "give a folder you can write: mindspeed-overlay --overlays DIR new ..."
        message = f"cannot write {error.filename}: {error.strerror}"
        raise DefinitionError(Problem(code="E408", message=message, hint=hint)) from error
    return [*files, overlays / "series"]


def find_symbol(pins: Pins, target: str, *, offline: bool) -> Iterator[str]:
    """One line per release: where a symbol stands, and whether it is as it was before."""
    path, _, symbol = target.partition(":")
    before = ""
    yield f"{symbol or path} on the pinned releases:"
    for release in pins.releases:
        python = release.python.removeprefix(">=")
        try:
            files = open_source(release, python=python, offline=offline).files
        except OverlayError as error:
            yield f"  {release.tag}: not looked at: {error.problems[0].message}"
            continue
        if path not in files:
            yield f"  {release.tag}: there is no {path}"
            continue
        lines = files[path].splitlines(keepends=True)
        span = parse_module(files[path]).span_of(symbol) if symbol else (1, len(lines))
        if span is None:
            yield f"  {release.tag}: {path} has no one {symbol}"
            continue
        digest = sha256(b"".join(lines[span[0] - 1 : span[1]]))
        state = "" if not before else ", as before" if digest == before else ", changed"
        yield f"  {release.tag}: {path}:{span[0]}-{span[1]}{state}"
        before = digest


def describe_steps(overlay_id: str, target: str) -> str:
    """The six steps, each with the command that does it."""
    family, _, feature = overlay_id.partition("/")
    module = feature.replace("-", "_")
    analyse = (
        f"mindspeed-overlay show {overlay_id}" if target else "run `new` with --target PATH:SYMBOL"
    )
    return dedent(f"""\
        The six steps:
          1. analyse     what upstream computes, on each release: {analyse}
          2. patch       mindspeed-overlay apply work --feature {overlay_id}; edit work/;
                         put each file's diff, with its header, into
                         overlays/{overlay_id}/patches/<since-tag>/ (docs/overlay-format.md):
                         a hook in the patch, the substance in files/
          3. argument    one [[option]] in overlays/{overlay_id}/overlay.toml
          4. enable      branch on the config field in the hook; off leaves upstream untouched
          5. test        tests/features/{family}/test_{module}.py: off equals pristine, on within
                         tolerance; mindspeed-overlay check
          6. contribute  docs/features/{feature}.md, a line in docs/changelog.md, the test report
        docs/writing-a-feature.md walks them with fusions/fused-swiglu.""")


def _overlay_toml(overlay_id: str, summary: str, module: str, since: str) -> str:
    feature = overlay_id.partition("/")[2]
    text = (
        summary.replace("\\", "\\\\").replace('"', '\\"') or f"What {feature} computes, and where"
    )
    return dedent(f"""\
        id = "{overlay_id}"
        summary = "{text}"
        level = 0
        requires = ["base/options"]
        conflicts = []
        releases = ">={since}"
        torch_npu = ">=2.7.1"
        upstream-status = "Inappropriate (Ascend only)"
        remove-when = "never: the operator exists on Ascend only"

        [[option]]
        flag = "--{feature}"
        field = "{module}"
        config = "TransformerConfig"
        type = "bool"
        default = false
        help = "{text}"
        """)


def _module(module: str) -> str:
    return f'"""What {module} computes, what it does not, which operator page it follows."""\n'


def _test(overlay_id: str, module: str) -> str:
    return dedent(f'''\
        """{overlay_id}: off equals pristine bit for bit, on equals it within a stated tolerance."""


        def test_{module}_has_a_scenario() -> None:
            """Fails until the feature has one: see docs/writing-a-feature.md, step 5."""
            raise AssertionError("write the scenario of {overlay_id}")
        ''')
