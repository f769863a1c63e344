"""Find a Megatron that hides the patched one.

A Megatron-LM checkout beside the script or on PYTHONPATH comes before site-packages, so `megatron`
is then imported from there, without overlays and without a word. The check compares paths only.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import mindspeed

# The hook that base/ascend puts into megatron/core/__init__.py.
_HOOK = b"from mindspeed.core.device import prepare_device"


def check_origin() -> None:
    """Make sure that the running Megatron is the one that was built together with this package.

    Looks at `megatron.core`, imported or about to be, and at every other `megatron.*` package that
    is imported and that this build carries too. What this build does not carry (`megatron.training`
    of a core-only wheel) may come from anywhere.

    Raises:
        RuntimeError: one of them comes from elsewhere, or has no overlays applied.
    """
    root = Path(mindspeed.__file__).resolve().parent.parent
    foreign = [
        f"{name} from {found}"
        for name, found in _find_packages().items()
        if _is_foreign(found, name, root)
    ]
    if foreign:
        raise RuntimeError(
            f"this run imports {', '.join(foreign)}, which hides the Megatron with Ascend features "
            f"in {root}. A Megatron-LM checkout beside the script or on PYTHONPATH does that: "
            "remove it from sys.path, or use the scripts of a build with `--tree full`. "
            "`mindspeed-overlay verify --installed` shows where each package comes from"
        )


def _find_packages() -> dict[str, Path]:
    """The `megatron.*` packages to look at, and the folder that each comes from."""
    names = [n for n in list(sys.modules) if n.startswith("megatron.") and n.count(".") == 1]
    found = {name: folder for name in names if (folder := _folder_of(sys.modules[name]))}
    if "megatron.core" not in found:
        spec = find_spec("megatron.core")
        if spec is None or spec.origin is None:
            raise RuntimeError("megatron.core is not installed, only this package, mindspeed, is")
        found["megatron.core"] = Path(spec.origin).resolve().parent
    return found


def _folder_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve().parent if file else None


def _is_foreign(folder: Path, name: str, root: Path) -> bool:
    own = root.joinpath(*name.split("."))
    if name == "megatron.core":
        return folder != own or _HOOK not in (own / "__init__.py").read_bytes()
    return folder != own and own.is_dir()
