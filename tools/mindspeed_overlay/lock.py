"""`build.lock.json`: everything that decided the bytes of a build, and the bytes' hashes.

It lies beside the wheels and is carried another way than they are: a wheel that agrees with it is
the build that was meant. `build --locked` makes the same bytes from it, or says what differs.
"""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import Problem, VerifyError
from mindspeed_overlay.plan import FORMAT_VERSION, Plan
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.wheelname import BUILD_JSON

LOCK_NAME = "build.lock.json"
_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class LockedWheel:
    """One wheel of a build: the target it is for, what it is made from, and its hashes.

    Attributes:
        python: the Python it was asked for, such as "3.11".
        platform: a name that chooses the same official wheel on every machine.
        upstream: file name of the official wheel that gave metadata and compressed members.
    """

    wheel: str
    wheel_sha256: str
    build_json_sha256: str
    python: str
    platform: str
    upstream: str
    upstream_sha256: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Inputs and results of one build.

    Attributes:
        digest: the build digest, the same for all targets.
        tool: version of this tool.
        wheel_format: the form in which wheels are written.
        revision: of the overlay set.
        release: tag, commit, version, digests and licence of the pinned release.
        source: "pypi", "git" or "dir".
        tree: "core" or "full".
        overlays: what `build.json` says of each overlay, with its digest and options.
    """

    digest: str
    tool: str
    wheel_format: int
    revision: int
    release: Mapping[str, str]
    source: str
    tree: str
    overlays: tuple[Mapping[str, Any], ...]
    wheels: tuple[LockedWheel, ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return (
            json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"
        ).encode()

    def get(self, wheel: str) -> LockedWheel | None:
        """The entry of a wheel, by its file name."""
        return next((entry for entry in self.wheels if entry.wheel == wheel), None)


def make_lock(plan: Plan, wheels: tuple[LockedWheel, ...], *, digest: str, source: str) -> Lock:
    """The lock of a plan and the wheels made of it.

    Args:
        plan: what was built.
        wheels: the results, one for each target.
        digest: the plan's build digest.
        source: kind of the source.
    """
    from mindspeed_overlay import __version__

    release = plan.release
    return Lock(
        digest=digest,
        tool=__version__,
        wheel_format=FORMAT_VERSION,
        revision=plan.revision,
        release={
            "tag": release.tag,
            "commit": release.commit,
            "version": release.version,
            "source_digest": release.source_digest,
            "tree_digest": release.tree_digest,
            "license": release.license,
        },
        source=source,
        tree=plan.tree,
        overlays=tuple(plan.overlay_rows()),
        wheels=wheels,
    )


def hash_build_json(wheel: bytes) -> str:
    """SHA-256 of the build record inside a wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return sha256(archive.read(BUILD_JSON))


def read_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises:
        VerifyError: E907, it is none, or one of another version of the tool.
    """
    try:
        table = json.loads(path.read_text("utf-8"))
        if table.pop("format") != _FORMAT:
            raise ValueError("written by another version of the tool")
        wheels = tuple(LockedWheel(**row) for row in table.pop("wheels"))
        return Lock(wheels=wheels, overlays=tuple(table.pop("overlays")), **table)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = Problem(
            code="E907", path=str(path), message=f"{path} is no build.lock.json: {error}"
        )
        raise VerifyError(problem) from error


def find_differences(locked: Lock, here: Lock) -> list[Problem]:
    """What decides the bytes and is not here what the lock says; E911, one for each value."""
    return [
        Problem(
            code="E911",
            overlay=overlay,
            message=f"{name} is {ours!r} here, the lock has {theirs!r}",
        )
        for overlay, name, theirs, ours in _compare(locked, here)
    ]


def _compare(locked: Lock, here: Lock) -> Iterator[tuple[str, str, object, object]]:
    names = ("tool", "wheel_format", "revision", "source", "tree")
    pairs: list[tuple[str, str, object, object]] = [
        ("", name, getattr(locked, name), getattr(here, name)) for name in names
    ]
    for key in sorted({*locked.release, *here.release}):
        pairs.append(("", f"release {key}", locked.release.get(key), here.release.get(key)))
    theirs, ours = ({row["id"]: row for row in lock.overlays} for lock in (locked, here))
    for overlay in dict.fromkeys([*theirs, *ours]):
        if overlay not in theirs or overlay not in ours:
            pairs.append((overlay, "its part in the build", overlay in theirs, overlay in ours))
            continue
        for key in sorted({*theirs[overlay], *ours[overlay]}):
            pairs.append((overlay, key, theirs[overlay].get(key), ours[overlay].get(key)))
    pairs.append(("", "order of the overlays", list(theirs), list(ours)))
    if all(first == second for _, _, first, second in pairs):
        pairs.append(("", "build digest", locked.digest, here.digest))
    yield from (pair for pair in pairs if pair[2] != pair[3])
