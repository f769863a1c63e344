"""A source tree in memory: paths to bytes, and the digest that pins it."""

import hashlib
import re
from collections.abc import Mapping

Files = Mapping[str, bytes]
"""Relative POSIX paths to contents."""

# Exactly the files a megatron-core sdist holds of the packages it carries.
_DIGESTED = re.compile(
    r"megatron/(core|training)/.+\.py"
    r"|megatron/core/(README\.md|requirements\.txt|datasets/helpers\.cpp)"
)


def sha256(data: bytes) -> str:
    """The SHA-256 of `data`, in hex."""
    return hashlib.sha256(data).hexdigest()


def git_blob_id(data: bytes) -> str:
    """The id git gives a file of these bytes (SHA-1 object format)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def is_digested(path: str, *, training: bool) -> bool:
    """Whether the source digest covers `path`; `training` as in `source_digest`."""
    in_sdist = training or not path.startswith("megatron/training/")
    return in_sdist and _DIGESTED.fullmatch(path) is not None


def lines_digest(hashes: Mapping[str, str]) -> str:
    """SHA-256 over sha256sum-format lines sorted by path; `hashes` maps paths to SHA-256 in hex."""
    return sha256("".join(f"{hashes[path]}  {path}\n" for path in sorted(hashes)).encode())


def source_digest(files: Files, *, training: bool) -> str:
    """The digest a pin records: over sha256sum-format lines, sorted by path.

    Args:
        files: a tree that may hold more than is digested.
        training: whether the release's sdist carries megatron/training (from core 0.17).
    """
    covered = (path for path in files if is_digested(path, training=training))
    return lines_digest({path: sha256(files[path]) for path in covered})
