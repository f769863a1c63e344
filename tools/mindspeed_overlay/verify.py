"""Is a wheel, or an installed megatron-core, exactly what its own records say?

Consistency is proved against RECORD and `mindspeed/build.json`. Whoever can rewrite both can forge
both, so authenticity needs a hash from elsewhere: a lock file or `--sha256`.
"""

import base64
import csv
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.wheelname import BUILD_JSON

_INSTALLERS_OWN = {"INSTALLER", "REQUESTED", "direct_url.json", "RECORD", "uv_cache.json"}


@dataclass(frozen=True)
class Verdict:
    """What was verified, what is wrong with it, and what the check cannot say."""

    subject: str
    version: str
    digest: str
    files: int
    problems: tuple[Problem, ...]
    locations: Mapping[str, str] = field(default_factory=dict)
    """`megatron.*` subpackages (and `mindspeed`) to where they are imported from."""

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "subject": self.subject,
            "version": self.version,
            "digest": self.digest,
            "files": self.files,
            "ok": not self.problems,
            "problems": [p.to_json() for p in self.problems],
            "locations": dict(self.locations),
        }


def verify_wheel(path: Path, *, expected_sha256: str = "") -> Verdict:
    """Check a built wheel; it is read, never unpacked or imported."""
    problems: list[Problem] = []
    if expected_sha256 and sha256(path.read_bytes()) != expected_sha256.lower():
        problems.append(_wrong("E906", "the wheel's SHA-256 is not the expected one", str(path)))
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            problems += _unsafe(archive.infolist())
            files = {name: archive.read(name) for name in dict.fromkeys(names)}
    except (zipfile.BadZipFile, OSError, RuntimeError, EOFError) as error:
        broken = _wrong("E901", f"cannot read the wheel: {error}", str(path))
        return Verdict(str(path), "", "", 0, (*problems, broken))
    if len(files) != len(names):
        problems.append(_wrong("E901", "the wheel holds two members of one name", str(path)))
    hashes = {name: sha256(data) for name, data in files.items()}
    build, trouble = check_records(hashes, files)
    problems += trouble
    expected = f"megatron_core-{build.get('version')}-"
    if build and not path.name.startswith(expected):
        problems.append(_wrong("E902", f"its build.json makes it {expected}*.whl", path.name))
    return Verdict(
        str(path), build.get("version", ""), build.get("digest", ""), len(files), tuple(problems)
    )


def _wrong(
    code: str, message: str, path: str, overlays: Iterable[str] = (), hint: str = ""
) -> Problem:
    return Problem(
        code=code, overlay=" ".join(overlays), message=f"{path}: {message}", path=path, hint=hint
    )


def _unsafe(members: Iterable[zipfile.ZipInfo]) -> list[Problem]:
    def bad(info: zipfile.ZipInfo) -> bool:
        parts = info.filename.replace("\\", "/").split("/")
        kind = info.external_attr >> 28
        return (
            info.filename.startswith("/") or ".." in parts or "\\" in info.filename or kind == 0xA
        )

    return [_wrong("E901", "unsafe member name or type", i.filename) for i in members if bad(i)]


def check_records(
    hashes: Mapping[str, str], texts: Mapping[str, bytes], *, installed: bool = False
) -> tuple[dict[str, Any], list[Problem]]:
    """Compare files with the RECORD and the build.json among them.

    Args:
        hashes: SHA-256 in hex of everything a wheel holds, or of everything but bytecode that an
            installation has of it, by path.
        texts: contents of RECORD and build.json, by path; may hold more.
        installed: which of the two; installers add bytecode and a few files of their own to RECORD.

    Returns:
        build.json's content (empty if unreadable), and what does not agree with its overlays.
    """
    record_path = next((p for p in texts if p.endswith(".dist-info/RECORD")), "")
    if not record_path or BUILD_JSON not in texts:
        missing = BUILD_JSON if record_path else "RECORD"
        hint = "an unmodified or foreign megatron-core has none"
        return {}, [
            _wrong("E903", "is missing: this is not a build of this tool", missing, hint=hint)
        ]
    try:
        build = json.loads(texts[BUILD_JSON])
        packaged: dict[str, Any] = build["files"]
        recorded = _read_record(texts[record_path])
    except (ValueError, KeyError, TypeError) as error:
        return {}, [_wrong("E903", f"cannot be read: {error}", f"{BUILD_JSON} or RECORD")]
    info = record_path.removesuffix("RECORD")
    problems = []
    for path in sorted({*hashes, *recorded, *packaged}):
        name = path.removeprefix(info)
        if path == record_path or (installed and _is_installers(path, name)):
            continue
        overlays = packaged.get(path, {}).get("overlays", ())
        message = _disagreement(path, hashes, recorded, packaged, in_info=path.startswith(info))
        if message:
            problems.append(_wrong("E904", message, path, overlays))
    return build, problems


def _is_installers(path: str, name_in_info: str) -> bool:
    return name_in_info in _INSTALLERS_OWN or "/__pycache__/" in path


def _read_record(data: bytes) -> dict[str, str]:
    rows = csv.reader(io.StringIO(data.decode()))
    return {row[0]: row[1] for row in rows if row}


def _disagreement(
    path: str,
    hashes: Mapping[str, str],
    recorded: Mapping[str, str],
    packaged: Mapping[str, Any],
    *,
    in_info: bool,
) -> str:
    if path not in hashes:
        return "is missing"
    if path not in recorded:
        return "is not in RECORD: it was added"
    if decode_record_hash(recorded[path]) != hashes[path]:
        return "is not what RECORD says: it was changed"
    if path == BUILD_JSON or in_info:
        return ""
    if path not in packaged:
        return "is not in build.json: it was added, and RECORD repaired"
    if packaged[path]["sha256"] != hashes[path]:
        return "is not what build.json says: it was changed, and RECORD repaired"
    return ""


def decode_record_hash(value: str) -> str:
    """A RECORD hash (`sha256=<urlsafe base64>`) as hex; "" for what is none."""
    kind, _, text = value.partition("=")
    try:
        return base64.urlsafe_b64decode(text + "=").hex() if kind == "sha256" else ""
    except ValueError:
        return ""
