"""Write accepted forms into the overlay set: each folder appears whole, and nothing else changes.

Where the old patches serve the new release as they are, only their Base-Blob lines grow. Otherwise
the whole set for the new release goes to `patches/<tag>/`, and a later release that the old patches
served keeps them, in a folder of its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mindspeed_overlay.errors import DefinitionError, Problem
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.patch import name_patch, parse_patch, serialize_patch
from mindspeed_overlay.port.carry import renew_header
from mindspeed_overlay.port.engine import Job, Ported
from mindspeed_overlay.port.threads import OverlayResult
from mindspeed_overlay.staging import clean_leftovers, stage_tree, write_atomically
from mindspeed_overlay.tree import git_blob_id

Folders = Mapping[str, Mapping[str, bytes]]
"""A since-tag to the files of its folder."""


def write_ported(ported: Ported, folder: Path) -> list[Path]:
    """Write every overlay that has something new; gives the folders and files written.

    Args:
        ported: without open overlays, or those are left out.
        folder: the overlay set.

    Raises:
        DefinitionError: E409, the overlay set can't be written.
    """
    written: list[Path] = []
    try:
        for result in ported.overlays:
            if result.kept or result.is_open:
                continue
            patches = folder / result.overlay / "patches"
            for name, data in plan_headers(ported.job, result).items():
                place = patches / result.since / name
                if place.read_bytes() != data:
                    write_atomically(place, data)
                    written.append(place)
            for tag, files in plan_folders(ported.job, result).items():
                if stage_tree(files, patches / tag, replace=True):
                    written.append(patches / tag)
    except OSError as error:
        message = f"cannot write {error.filename}: {error.strerror}"
        hint = "give a folder you can write: mindspeed-overlay --overlays DIR port ..."
        raise DefinitionError(Problem(code="E409", message=message, hint=hint)) from error
    return written


def clean_set(folder: Path) -> None:
    """Remove what a killed run left between the folders of an overlay set."""
    for stage in folder.glob("*/*/patches/**/.*.staging-*"):
        clean_leftovers(stage.parent / stage.name[1:].rpartition(".staging-")[0])


def plan_headers(job: Job, result: OverlayResult) -> dict[str, bytes]:
    """Patch files of the old folder with one more Base-Blob, where they go on serving."""
    if not result.still_serves or _has_own_folder(job, result):
        return {}
    overlay = job.overlays.get(result.overlay)
    found: dict[str, bytes] = {}
    for name, data in overlay.patch_sets.get(result.since, {}).items():
        patch = parse_patch(data, name=name)
        base = job.new.files.get(patch.target)
        if base is None or patch.base_blobs.get(job.new.tag) == git_blob_id(base):
            continue
        blobs = {**patch.base_blobs, job.new.tag: git_blob_id(base)}
        ordered = {tag: blobs[tag] for tag in job.order if tag in blobs}
        header = renew_header(patch.header, ordered, "")
        found[name] = serialize_patch(replace(patch, header=header))
    return found


def plan_folders(job: Job, result: OverlayResult) -> dict[str, dict[str, bytes]]:
    """The new since-folders of an overlay: for the new release, and to keep a later one served."""
    if result.still_serves and not _has_own_folder(job, result):
        return {}
    overlay = job.overlays.get(result.overlay)
    files: dict[str, bytes] = {}
    for patch_result in result.patches:
        if patch_result.unchecked:
            files[patch_result.name] = overlay.patch_sets[result.since][patch_result.name]
        elif (patch := patch_result.patch) is not None:
            base = job.new.files[patch.target]
            blobs = {job.new.tag: git_blob_id(base)}
            changed = patch_result.outcome not in ("exact", "offset")
            header = renew_header(patch.header, blobs, job.today if changed else "")
            files[name_patch(patch.target)] = serialize_patch(replace(patch, header=header))
    if not files:
        files["ABSORBED"] = _explain_absorbed(result).encode()
    folders = {job.new.tag: files}
    if (later := _next_served(job, overlay, result.since)) is not None:
        folders[later] = dict(overlay.patch_sets[result.since])
    return folders


def _has_own_folder(job: Job, result: OverlayResult) -> bool:
    return job.new.tag in job.overlays.get(result.overlay).patch_sets


def _next_served(job: Job, overlay: Overlay, since: str) -> str | None:
    """The release after the new one, if the old folder serves it now."""
    at = job.order.index(job.new.tag) + 1
    if at >= len(job.order) or overlay.patch_since(job.order[at], job.order) != since:
        return None
    return job.order[at] if overlay.serves(job.order[at], job.order) else None


def _explain_absorbed(result: OverlayResult) -> str:
    lines = [f"{p.target}: absorbed" for p in result.patches]
    return "No patch is left for this release:\n" + "".join(f"{line}\n" for line in lines)
