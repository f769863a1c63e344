"""One archive that installs a build where there is no network, and can undo it.

Its bytes depend on what is in it alone: names, order, modes and times of members are fixed. What
proves it comes from elsewhere: the hash of SHA256SUMS that `bundle` prints, or a key.
"""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindspeed_overlay.cluster.attest import make_statement
from mindspeed_overlay.cluster.index import write_constraints
from mindspeed_overlay.cluster.publish import Upload
from mindspeed_overlay.cluster.sign import sign_bytes
from mindspeed_overlay.errors import PackagingError, Problem
from mindspeed_overlay.lock import LOCK_NAME, Lock
from mindspeed_overlay.staging import write_atomically
from mindspeed_overlay.tree import sha256

_INSTALL = Path(__file__).with_name("install_bundle.py")
SUMS = "SHA256SUMS"


def make_bundle(
    lock: Lock,
    wheels: Sequence[Upload],
    dependencies: Sequence[Upload] = (),
    *,
    key: Path | None = None,
) -> tuple[bytes, str]:
    """The bytes of a bundle, and the hash of its SHA256SUMS.

    Args:
        lock: of the wheels.
        wheels: builds of one version.
        dependencies: wheels of other projects, one version each.
        key: private key that signs SHA256SUMS.

    Raises:
        PackagingError: E715, the wheels are not one version each.
    """
    version = _one_version(wheels, "megatron-core")
    projects = sorted({upload.entry.project for upload in dependencies} - {"megatron-core"})
    versions = {
        name: _one_version([u for u in dependencies if u.entry.project == name], name)
        for name in projects
    }
    everything = [*wheels, *dependencies]
    manifest = {
        "format": 1,
        "version": version,
        "digest": lock.digest,
        "dependencies": versions,
        "hashes": {
            name: sorted(u.entry.sha256 for u in everything if u.entry.project == name)
            for name in ("megatron-core", *projects)
        },
    }
    files = {
        "install.py": _INSTALL.read_bytes(),
        "bundle.json": _json(manifest),
        LOCK_NAME: lock.to_bytes(),
        "build.provenance.json": _json(make_statement(lock)),
        "constraints.txt": write_constraints(u.entry for u in everything),
        **{f"sboms/{u.entry.filename}.cdx.json": _read_sbom(u) for u in wheels},
        **{f"wheels/{u.entry.filename}": u.data for u in wheels},
        **{f"dependencies/{u.entry.filename}": u.data for u in dependencies},
    }
    sums = "".join(f"{sha256(files[path])}  {path}\n" for path in sorted(files)).encode()
    files[SUMS] = sums
    if key:
        files[f"{SUMS}.sig"] = sign_bytes(sums, key)
    return write_tar(files, root=f"mindspeed-bundle-{version}"), sha256(sums)


def write_bundle(path: Path, data: bytes) -> None:
    """Put the archive in its place at once.

    Raises:
        PackagingError: E703, the disk refused.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (path.is_file() and path.read_bytes() == data):
            write_atomically(path, data)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        raise PackagingError(Problem(code="E703", path=str(path), message=message)) from error


def write_tar(files: Mapping[str, bytes], *, root: str) -> bytes:
    """A tar whose bytes depend on `files` alone: sorted, mode 0644, of nobody, dated 1980."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(files):
            member = tarfile.TarInfo(f"{root}/{path}")
            member.size = len(files[path])
            member.mode = 0o644
            member.mtime = 315532800
            archive.addfile(member, io.BytesIO(files[path]))
    return buffer.getvalue()


def _one_version(uploads: Sequence[Upload], name: str) -> str:
    versions = sorted({u.entry.version for u in uploads if u.entry.project == name})
    if len(versions) != 1 or any(u.entry.project != name for u in uploads):
        found = ", ".join(sorted({f"{u.entry.project} {u.entry.version}" for u in uploads}))
        message = f"a bundle holds one version of {name}; given are: {found or 'none'}"
        raise PackagingError(Problem(code="E715", message=message))
    return versions[0]


def _read_sbom(wheel: Upload) -> bytes:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        names = [n for n in archive.namelist() if n.endswith("/sboms/mindspeed-overlay.cdx.json")]
        return archive.read(names[0])


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
