"""`build.lock.json`: what a build was, kept beside the wheel and carried another way than it."""

import io
import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from mindspeed_overlay.errors import Problem, VerifyError
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.wheelname import BUILD_JSON

LOCK_NAME = "build.lock.json"


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The hashes that make a later check of the wheel, or of its installation, authentic."""

    wheel: str
    wheel_sha256: str
    build_json_sha256: str
    digest: str

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return (json.dumps({"format": 1, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()


def make_lock(name: str, wheel: bytes, digest: str) -> Lock:
    """The lock of a wheel just built."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        build_json = archive.read(BUILD_JSON)
    return Lock(
        wheel=name,
        wheel_sha256=sha256(wheel),
        build_json_sha256=sha256(build_json),
        digest=digest,
    )


def read_lock(path: Path) -> Lock:
    """Read a lock file; VerifyError E907 if it is none."""
    try:
        table = json.loads(path.read_text("utf-8"))
        if table.pop("format") != 1:
            raise ValueError("written by another version of the tool")
        return Lock(**table)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = Problem(
            code="E907", path=str(path), message=f"{path} is no build.lock.json: {error}"
        )
        raise VerifyError(problem) from error
