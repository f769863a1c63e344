"""An unpacked tree on disk (a checkout, a wheel, site-packages), as far as the digest goes."""

from pathlib import Path

from mindspeed_overlay.errors import Problem, SourceError
from mindspeed_overlay.tree import is_digested

_PACKAGES = ("core", "training")


def read_folder(root: Path, *, training: bool) -> dict[str, bytes]:
    """The files below `root` that the source digest covers; everything else is left alone.

    Args:
        root: the folder that holds `megatron/core`.
        training: whether the release's distribution carries megatron/training.

    Raises:
        SourceError: E319, there is no such tree or it cannot be read.
    """
    if not (root / "megatron" / "core").is_dir():
        message = f"{root} is no Megatron tree: it has no megatron/core"
        hint = "give the folder that holds `megatron`, such as a checkout or site-packages"
        raise SourceError(Problem(code="E319", message=message, path=str(root), hint=hint))
    files = {}
    for package in _PACKAGES:
        for path in sorted((root / "megatron" / package).rglob("*")):
            name = path.relative_to(root).as_posix()
            if is_digested(name, training=training) and path.is_file():
                files[name] = _read(path)
    return files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise SourceError(Problem(code="E319", message=message, path=str(path))) from error
