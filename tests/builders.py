"""Small real upstreams: a Megatron-like tree, its official wheels, its git repository, its pin."""

import base64
import hashlib
import io
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mindspeed_overlay.pins import Release, Wheel
from mindspeed_overlay.tree import lines_digest, sha256, source_digest

VERSION = "0.1.0"
TAG = f"core_v{VERSION}"
X86_311 = "cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64"
ARM_312 = "cp312-cp312-manylinux_2_24_aarch64.manylinux_2_28_aarch64"
HELPERS = "megatron/core/datasets/helpers_cpp.cpython-311-x86_64-linux-gnu.so"
LICENSE = b"You may do with this as you like.\n"

# What an sdist of it holds.
CORE: dict[str, bytes] = {
    "megatron/core/__init__.py": b"from .package_info import __version__\n",
    "megatron/core/package_info.py": b"__version__ = '0.1.0'\n",
    "megatron/core/README.md": b"# Core\n",
    "megatron/core/requirements.txt": b"torch\n",
    "megatron/core/datasets/helpers.cpp": b"int main() { return 0; }\n",
    "megatron/core/transformer/mlp.py": b"class MLP:\n    pass\n",
}
# What only its repository holds.
REPOSITORY: dict[str, bytes] = {
    **CORE,
    "LICENSE": LICENSE,
    "setup.py": b"raise SystemExit('upstream code ran')\n",
    "gpt_builders.py": b"import model_provider, os\n",
    "model_provider.py": b"import torch\n",
    "pretrain_gpt.py": b"from gpt_builders import gpt_builder\nimport setup_of_nothing\n",
    "examples/run.sh": b"#!/bin/sh\n",
    "megatron/core/datasets/Makefile": b"all:\n",
    "megatron/legacy/model.py": b"old = True\r\n",
    "megatron/training/training.py": b"caf\xe9 = 1\n",
}


@dataclass(frozen=True)
class Upstream:
    """A release with all that a pin speaks of; `links` is a folder for pip's --find-links."""

    release: Release
    links: Path
    repository: Path


def make_upstream(folder: Path, *, tags: Iterable[str] = (X86_311, ARM_312)) -> Upstream:
    """A release whose wheels and commit agree."""
    links, repository = folder / "links", folder / "upstream"
    links.mkdir()
    wheels = [make_wheel(links, tag=tag) for tag in tags]
    commit = make_repository(repository, REPOSITORY)
    return Upstream(make_release(wheels, commit=commit), links, repository)


def make_release(wheels: Iterable[Path], *, commit: str = "", **changes: object) -> Release:
    """The pin of these wheels and of a commit that holds REPOSITORY."""
    pinned = tuple(Wheel(path.name, sha256(path.read_bytes())) for path in wheels)
    release = Release(
        tag=TAG,
        commit=commit,
        version=VERSION,
        python=">=3.10",
        source_digest=source_digest(CORE, training=False),
        tree_digest=tree_digest(REPOSITORY) if commit else "",
        wheels=pinned,
        other_digests=(),
        yanked="",
        license=sha256(LICENSE),
        training=False,
    )
    return replace(release, **changes)  # type: ignore[arg-type]


def stock_cache(upstream: Upstream, cache_dir: Path) -> None:
    """Put the wheels into the cache, as if they had been fetched."""
    for wheel in upstream.release.wheels:
        (entry := cache_dir / "sha256" / wheel.sha256).mkdir(parents=True, exist_ok=True)
        shutil.copy(upstream.links / wheel.filename, entry)


def tree_digest(files: Mapping[str, bytes]) -> str:
    """The digest of a whole tree, as a pin records it."""
    return lines_digest({path: sha256(data) for path, data in files.items()})


def make_wheel(
    folder: Path,
    *,
    tag: str = X86_311,
    version: str = VERSION,
    files: Mapping[str, bytes] = CORE,
    extra: Mapping[str, bytes] = {},
    unrecorded: Mapping[str, bytes] = {},
    floor: str = ">=3.10",
) -> Path:
    """Write an official wheel with its compiled helpers, and with what has no place there.

    Args:
        folder: where to.
        tag: of the file name; names the compiled file too.
        version: of the distribution.
        files: its sources.
        extra: more members, listed in RECORD.
        unrecorded: more members, or other bytes of a member, not as RECORD has it.
        floor: Requires-Python; "" leaves it out.
    """
    python, _, platform = tag.split("-")
    machine = platform.partition(".")[0].split("_", 3)[-1]
    compiled = f"helpers_cpp.cpython-{python[2:]}-{machine}-linux-gnu.so"
    natives = {f"megatron/core/datasets/{compiled}": f"ELF {tag}".encode()}
    info = f"megatron_core-{version}.dist-info"
    needs = f"Requires-Python: {floor}\n" if floor else ""
    metadata = f"Metadata-Version: 2.1\nName: megatron-core\nVersion: {version}\n{needs}\nText.\n"
    members = {
        **files,
        **(natives if platform != "any" else {}),
        **extra,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
        + b"".join(f"Tag: {python}-{python}-{p}\n".encode() for p in platform.split(".")),
        f"{info}/licenses/LICENSE": LICENSE,
    }
    record = "".join(f"{name},{record_hash(d)},{len(d)}\n" for name, d in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"megatron_core-{version}-{tag}.whl"
    path.write_bytes(zip_bytes({**members, **unrecorded}.items()))
    return path


def record_hash(data: bytes) -> str:
    """A hash as RECORD writes it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


def zip_bytes(members: Iterable[tuple[str | zipfile.ZipInfo, bytes]]) -> bytes:
    """A zip of exactly these members, whatever their names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def make_repository(path: Path, files: Mapping[str, bytes], *, tag: str = TAG) -> str:
    """A repository with a commit of these files on `main`, tagged; returns the commit."""
    run_git(path.parent, "init", "-q", "-b", "main", str(path))
    return commit_files(path, files, tag=tag)


def commit_files(path: Path, files: Mapping[str, bytes], *, tag: str = "") -> str:
    """Commit these files on top; returns the commit."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    run_git(path, "add", "--all", "--force")
    run_git(path, "commit", "-q", "-m", "commit")
    if tag:
        run_git(path, "tag", tag)
    return run_git(path, "rev-parse", "HEAD")


def run_git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    """Run git as the upstream's maintainer, who has no configuration."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = {f"GIT_{role}_{k}": "u@x" for role in ("AUTHOR", "COMMITTER") for k in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**clean, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        input=stdin,
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout.decode().strip()


def use_links(monkeypatch: pytest.MonkeyPatch, links: Path | None) -> None:
    """Let the user's pip look into this folder, or nowhere, instead of asking an index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if links is not None:
        monkeypatch.setenv("PIP_FIND_LINKS", str(links))


@contextmanager
def mount_tiny(folder: Path, size: str) -> Iterator[Path]:
    """A new folder with a file system of a few blocks; skips where none can be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tiny file system needs the right to mount: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
