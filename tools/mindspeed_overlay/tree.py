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


def source_digest(files: Files, *, training: bool) -> str:
    """The digest a pin records: over sha256sum-format lines, sorted by path.

    Args:
        files: a tree that may hold more than is digested.
        training: whether the release's sdist carries megatron/training (from core 0.17).
    """
    paths = (p for p in sorted(files) if _DIGESTED.fullmatch(p))
    kept = (p for p in paths if training or not p.startswith("megatron/training/"))
    return sha256("".join(f"{sha256(files[p])}  {p}\n" for p in kept).encode())
