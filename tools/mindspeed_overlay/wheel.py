"""The contents of a patched wheel: members, metadata, notices, SBOM and RECORD."""

import base64
import hashlib
import json
import re
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspeed_overlay import __version__
from mindspeed_overlay.archive import Member, keep, store, write_archive
from mindspeed_overlay.errors import PackagingError, Problem
from mindspeed_overlay.plan import FORMAT_VERSION, Plan
from mindspeed_overlay.provenance import LineRange
from mindspeed_overlay.source import Source
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.wheelname import BUILD_JSON, local_version


def write_wheel(
    plan: Plan,
    source: Source,
    files: Mapping[str, bytes],
    *,
    touched: Mapping[str, tuple[str, ...]],
    lines: Mapping[str, tuple[LineRange, ...]],
) -> bytes:
    """The bytes of the wheel.

    Args:
        plan: what is in the build.
        source: the pristine release; its wheel gives metadata and unchanged compressed members.
        files: every packaged file, patched.
        touched: path of each changed or added file to the overlays that did it.
        lines: path of each changed file to the lines that hunks brought.
    """
    digest = plan.build_digest(source.digest)
    info = f"megatron_core-{local_version(plan, digest)}.dist-info"
    build = build_record(plan, source, files, touched=touched, lines=lines)
    with zipfile.ZipFile(source.wheel) as upstream:
        metadata = _upstream_metadata(upstream)
        members = _members(upstream, {**files, BUILD_JSON: _json(build)})
    extra = {
        "METADATA": _metadata(metadata, plan, digest),
        "WHEEL": _wheel_file(source.tags),
        "licenses/LICENSE": source.license_text,
        "licenses/NOTICE": _notice(plan, digest, touched),
        "sboms/mindspeed-overlay.cdx.json": _json(_sbom(plan, source, digest)),
        "top_level.txt": b"megatron\nmindspeed\n",
    }
    members += [store(f"{info}/{path}", data) for path, data in sorted(extra.items())]
    contents = {**files, BUILD_JSON: _json(build)}
    contents |= {f"{info}/{path}": data for path, data in extra.items()}
    record = "".join(_record_line(m.path, contents[m.path]) for m in members)
    record_path = f"{info}/RECORD"
    return write_archive([*members, store(record_path, f"{record}{record_path},,\n".encode())])


def _members(upstream: zipfile.ZipFile, files: Mapping[str, bytes]) -> list[Member]:
    infos = {info.filename: info for info in upstream.infolist()}

    def member(path: str) -> Member:
        info = infos.get(path)
        if info and info.file_size == len(files[path]) and upstream.read(info) == files[path]:
            return keep(upstream, info)
        return store(path, files[path])

    return [member(path) for path in sorted(files)]


def record_hash(data: bytes) -> str:
    """SHA-256 in the form RECORD uses: urlsafe base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _record_line(path: str, data: bytes) -> str:
    if "," in path or '"' in path:
        raise PackagingError(Problem(code="E701", message=f"RECORD cannot hold the name {path!r}"))
    return f"{path},sha256={record_hash(data)},{len(data)}\n"


def build_record(
    plan: Plan,
    source: Source,
    files: Mapping[str, bytes],
    *,
    touched: Mapping[str, tuple[str, ...]],
    lines: Mapping[str, tuple[LineRange, ...]],
) -> dict[str, Any]:
    """What `mindspeed/build.json` says: the build, its overlays, every file's hash and overlays.

    Of a patched file also where each line that is not upstream's comes from.
    """
    digest = plan.build_digest(source.digest)
    return {
        "format": FORMAT_VERSION,
        "generator": __version__,
        "version": local_version(plan, digest),
        "digest": digest,
        "revision": plan.revision,
        "release": plan.release.tag,
        "commit": plan.release.commit,
        "source_digest": source.digest,
        "tree": plan.tree,
        "overlays": plan.overlay_rows(),
        "skipped_patches": [
            {"overlay": p.overlay, "patch": p.name, "target": p.target} for p in plan.skipped
        ],
        "files": {
            path: {
                "sha256": sha256(files[path]),
                "overlays": list(touched.get(path, ())),
                **({"lines": [r.to_json() for r in lines[path]]} if path in lines else {}),
            }
            for path in sorted(files)
        },
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode()


def _upstream_metadata(upstream: zipfile.ZipFile) -> bytes:
    for name in upstream.namelist():
        if re.fullmatch(r"megatron_core-[^/]+\.dist-info/METADATA", name):
            return upstream.read(name)
    raise PackagingError(Problem(code="E702", message=f"{upstream.filename} has no METADATA"))


def _metadata(upstream: bytes, plan: Plan, digest: str) -> bytes:
    """Upstream's METADATA with our version, both licence files, and one line of description."""
    head, gap, body = upstream.partition(b"\n\n")
    lines = [line for line in head.split(b"\n") if not line.startswith(b"License-File:")]
    version = local_version(plan, digest).encode()
    lines = [b"Version: " + version if line.startswith(b"Version:") else line for line in lines]
    lines += [b"License-File: LICENSE", b"License-File: NOTICE"]
    line = (
        f"This is megatron-core {plan.release.version} modified for Ascend NPUs by"
        f" mindspeed-overlay, build {digest[:12]}; the modified files are named in NOTICE.\n\n"
    )
    return b"\n".join(lines) + gap + line.encode() + body


def _wheel_file(tags: tuple[str, ...]) -> bytes:
    pure = "true" if all(tag.endswith("-none-any") for tag in tags) else "false"
    head = f"Wheel-Version: 1.0\nGenerator: mindspeed-overlay {__version__}\n"
    return (head + f"Root-Is-Purelib: {pure}\n" + "".join(f"Tag: {t}\n" for t in tags)).encode()


def _notice(plan: Plan, digest: str, touched: Mapping[str, tuple[str, ...]]) -> bytes:
    new = {path for _, path, _ in plan.files}
    rows = [
        f"{'added' if path in new else 'modified'}  {path}  ({', '.join(touched[path])})\n"
        for path in sorted(touched)
    ]
    return (
        f"megatron-core {plan.release.version} ({plan.release.tag},\n"
        f"commit {plan.release.commit or 'unknown'}),\n"
        "by NVIDIA CORPORATION, under the licence in LICENSE, was modified by mindspeed-overlay\n"
        f"(build {digest}).\n"
        "Files that differ from the original, and the overlays that changed them:\n\n"
        f"{''.join(rows)}"
    ).encode()


def _sbom(plan: Plan, source: Source, digest: str) -> dict[str, Any]:
    """CycloneDX 1.6: the wheel, the release it is made from, and the overlays."""
    version = local_version(plan, digest)
    ref = f"pkg:pypi/megatron-core@{version}"
    upstream = f"pkg:pypi/megatron-core@{plan.release.version}"
    overlays: list[dict[str, Any]] = [
        {
            "type": "file",
            "bom-ref": f"overlay:{o.id}",
            "name": o.id,
            "description": o.summary,
            "hashes": [{"alg": "SHA-256", "content": plan.overlay_digest(o.id)}],
        }
        for o in plan.overlays
    ]
    pristine = {
        "type": "library",
        "bom-ref": upstream,
        "name": "megatron-core",
        "version": plan.release.version,
        "purl": upstream,
        "hashes": [{"alg": "SHA-256", "content": sha256(Path(source.wheel).read_bytes())}],
        "properties": [
            {"name": "mindspeed-overlay:tag", "value": plan.release.tag},
            {"name": "mindspeed-overlay:commit", "value": plan.release.commit},
            {"name": "mindspeed-overlay:source-digest", "value": source.digest},
        ],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32], version=4)}",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [
                    {"type": "application", "name": "mindspeed-overlay", "version": __version__}
                ]
            },
            "component": {
                "type": "library",
                "bom-ref": ref,
                "name": "megatron-core",
                "version": version,
                "purl": ref,
            },
        },
        "components": [pristine, *overlays],
        "dependencies": [
            {"ref": ref, "dependsOn": [upstream, *(o["bom-ref"] for o in overlays)]},
        ],
    }
