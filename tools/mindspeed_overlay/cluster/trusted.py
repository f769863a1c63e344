"""Wheels that leave this machine are what their locks say."""

from collections.abc import Iterable
from pathlib import Path

from mindspeed_overlay.errors import Problem, VerifyError
from mindspeed_overlay.lock import LOCK_NAME, Lock, read_lock
from mindspeed_overlay.verify import verify_wheel


def check_against_locks(wheels: Iterable[Path], lock: Path | None = None) -> dict[Path, Lock]:
    """Verify wheels against a lock, or against the one beside each.

    Returns:
        The locks, by the path they were read from.

    Raises:
        VerifyError: E907 a lock is missing, E906 a wheel is not in its lock, or E90x what is wrong
            with a wheel; all together.
    """
    locks: dict[Path, Lock] = {}
    problems: list[Problem] = []
    for wheel in wheels:
        path = lock or wheel.with_name(LOCK_NAME)
        if path not in locks:
            locks[path] = read_lock(path)
        entry = locks[path].get(wheel.name)
        if entry is None:
            message = f"{wheel.name} is not in {path}"
            problems.append(Problem(code="E906", path=str(wheel), message=message))
            continue
        problems += verify_wheel(wheel, expected_sha256=entry.wheel_sha256).problems
    if problems:
        raise VerifyError(*problems)
    return locks
