"""The torch_npu that each overlay of this build needs, against the one that is installed."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mindspeed.core.agreement import find_version

_RELEASE = re.compile(r"\d+(?:\.\d+)*")


def check_torch_npu(build: Mapping[str, Any], *, installed: str | None = None) -> None:
    """Refuse a torch_npu older than the overlays were written for.

    Args:
        build: the contents of build.json; without it (a source tree) nothing is known.
        installed: the version to judge; by default that of torch-npu here, if there is one.

    Raises:
        RuntimeError: naming each overlay and the version it needs.
    """
    found = find_version("torch_npu") if installed is None else installed
    if not found:
        return
    too_new = [f"{name} needs torch_npu >={floor}" for name, floor in _floors(build, above=found)]
    if too_new:
        raise RuntimeError(
            f"torch_npu {found} is too old for this build: {', '.join(too_new)}. Install a newer "
            "torch_npu, or build without these overlays (mindspeed-overlay build --without ID)"
        )


def _floors(build: Mapping[str, Any], *, above: str) -> Iterator[tuple[str, str]]:
    for overlay in build.get("overlays", ()):
        floor = _RELEASE.search(overlay.get("torch_npu", ""))
        if floor and _order(floor[0]) > _order(above):
            yield overlay["id"], floor[0]


def _order(release: str) -> tuple[int, ...]:
    match = _RELEASE.match(release)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
