"""Finished wheels in the cache, so that a build with nothing to do copies one file."""

from pathlib import Path

from mindspeed_overlay.source.cache import explain_write_errors
from mindspeed_overlay.staging import write_atomically
from mindspeed_overlay.tree import sha256


class FinishedBuilds:
    """Wheels by the hash of everything that decides their bytes; each is verified when used."""

    def __init__(self, cache_root: Path) -> None:
        self._folder = cache_root / "builds"

    def get(self, key: str) -> bytes | None:
        """The wheel, or None if it is not there or has rotted."""
        try:
            checksum, _, data = (self._folder / key).read_bytes().partition(b"\n")
        except OSError:
            return None
        return data if sha256(data).encode() == checksum else None

    def put(self, key: str, data: bytes) -> None:
        """Keep a wheel."""
        with explain_write_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / key, sha256(data).encode() + b"\n" + data)
