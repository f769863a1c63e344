"""Turn somebody's patches into an overlay.

A diff of many files, a folder of diffs, or a git branch against a tag: edits become canonical
patches, new files go to `files/`. What an overlay can't hold is left out and told.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mindspeed_overlay.errors import ApplyError, DefinitionError, OverlayError, Problem
from mindspeed_overlay.patch import make_patch, name_patch, serialize_patch
from mindspeed_overlay.patch_header import MAX_CHANGED_LINES
from mindspeed_overlay.port.diffs import FileDiff, apply_diff, read_diff
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.source.transport import run_git
from mindspeed_overlay.staging import stage_tree, write_atomically
from mindspeed_overlay.tree import git_blob_id

_PACKAGED = ("megatron/", "mindspeed/")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """An overlay made of foreign patches, in memory.

    Attributes:
        patches: file names to patch files.
        files: new files.
        left_out: path and reason of what an overlay can't hold.
    """

    patches: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    left_out: tuple[tuple[str, str], ...] = ()


def read_folder(place: Path) -> Iterator[tuple[str, bytes]]:
    """The diffs of a file or a folder, by name."""
    if place.is_file():
        yield place.name, place.read_bytes()
        return
    for path in sorted(place.rglob("*")):
        if path.is_file() and path.suffix in (".patch", ".diff"):
            yield path.relative_to(place).as_posix(), path.read_bytes()


def read_branch(repository: Path, base: str, branch: str) -> Iterator[tuple[str, bytes]]:
    """What a branch changed since a commit, as one diff."""
    options = ["--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index"]
    yield branch, run_git(repository, ["diff", *options, base, branch, "--"]) + b"\n"


def import_diffs(
    diffs: Sequence[tuple[str, bytes]],
    base: Mapping[str, bytes],
    *,
    overlay: str,
    tag: str,
    today: str,
    origin: str,
) -> Imported:
    """Make an overlay of diffs against a release.

    Args:
        diffs: names and texts.
        base: the release's files.
        overlay: the id it gets.
        tag: the release.
        today: for Last-Update.
        origin: for Origin.

    Raises:
        ApplyError: every diff that can't be read, and every hunk that does not fit the release.
    """
    problems: list[Problem] = []
    edited: dict[str, bytes] = {}
    files: dict[str, bytes] = {}
    left_out: list[tuple[str, str]] = []
    for name, data in diffs:
        try:
            found = read_diff(data, name=name)
        except ApplyError as error:
            problems += error.problems
            continue
        for diff in found:
            try:
                _take(diff, base, edited, files, left_out)
            except ApplyError as error:
                problems += error.problems
    if problems:
        raise ApplyError(*problems)
    patches = write_patches(edited, base, overlay=overlay, tag=tag, today=today, origin=origin)
    return Imported(patches=patches, files=files, left_out=tuple(left_out))


def write_patches(
    edited: Mapping[str, bytes],
    base: Mapping[str, bytes],
    *,
    overlay: str,
    tag: str,
    today: str,
    origin: str,
) -> dict[str, bytes]:
    """Patch files, by their names, from a release's files to edited ones; as `import_diffs`."""
    return {
        name_patch(path): _write_patch(path, base[path], data, (overlay, tag, today, origin))
        for path, data in edited.items()
        if data != base[path]
    }


def _take(
    diff: FileDiff,
    base: Mapping[str, bytes],
    edited: dict[str, bytes],
    files: dict[str, bytes],
    left_out: list[tuple[str, str]],
) -> None:
    path = diff.path
    if diff.kind in ("deleted", "renamed", "binary"):
        left_out.append((path, f"an overlay can't hold a file that is {diff.kind}"))
    elif diff.kind == "added" and path not in base:
        if not path.startswith(_PACKAGED):
            left_out.append((path, "a new file outside megatron/ and mindspeed/ is not packaged"))
        elif path == "megatron/__init__.py":
            left_out.append((path, "`megatron` is a namespace package and stays one"))
        else:
            files[path] = apply_diff(files.get(path, b""), diff)
    elif path in base:
        if diff.hunks:
            edited[path] = apply_diff(edited.get(path, base[path]), diff)
        else:
            left_out.append((path, "only its mode changes"))
    else:
        message = f"{path} is not in the release"
        raise ApplyError(Problem(code="E501", message=message, path=path))


def _write_patch(path: str, before: bytes, after: bytes, about: tuple[str, str, str, str]) -> bytes:
    overlay, tag, today, origin = about
    document = Document(before, path.endswith(".py"))
    header: dict[str, tuple[str, ...]] = {
        "Subject": (f"Edit {path.rpartition('/')[2]} for {overlay}",),
        "Feature": (overlay,),
        "Base-Blob": (f"{tag} {git_blob_id(before)}",),
        "Origin": (origin,),
        "Forwarded": ("no",),
        "Last-Update": (today,),
        "Remove-When": ("not known: it was imported",),
    }
    reason = f"Imported from {origin}; say here why it is needed."
    patch = make_patch(
        before, after, target=path, header=header, symbol_of=document.symbol_at, reason=reason
    )
    if patch.num_changed_lines > MAX_CHANGED_LINES:
        header["Why-Large"] = ("imported as it was",)
        patch = make_patch(
            before, after, target=path, header=header, symbol_of=document.symbol_at, reason=reason
        )
    return serialize_patch(patch)


def write_imported(imported: Imported, folder: Path, *, overlay: str, tag: str) -> list[Path]:
    """Add an imported overlay to an overlay set, which is made where there is none.

    Raises:
        DefinitionError: E408, the overlay is there already, or the set can't be written.
    """
    place = folder / overlay
    if place.exists():
        raise DefinitionError(Problem(code="E408", overlay=overlay, message=f"{place} is there"))
    text = (
        f'id = "{overlay}"\nsummary = "Imported patches"\nlevel = 0\nrequires = []\n'
        'upstream-status = "Pending"\nremove-when = "not known: it was imported"\n'
    )
    files = {"overlay.toml": text.encode()}
    files |= {f"patches/{tag}/{name}": data for name, data in imported.patches.items()}
    files |= {f"files/{path}": data for path, data in imported.files.items()}
    series = folder / "series"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stage_tree(files, place)
        known = series.read_text("utf-8") if series.is_file() else "revision 1\n"
        write_atomically(series, f"{known.rstrip()}\n{overlay}\n".encode())
    except OverlayError:
        raise
    except OSError as error:
        message = f"cannot write {error.filename}: {error.strerror}"
        raise DefinitionError(Problem(code="E408", overlay=overlay, message=message)) from error
    return [place, series]
