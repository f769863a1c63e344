"""Where overlays and pins are: in a checkout, or inside the installed tool."""

from pathlib import Path

_PACKAGE = Path(__file__).parent
_CHECKOUT = _PACKAGE.parents[1]


def data_folder() -> Path:
    """The folder that holds `overlays/` and `megatron_pin.txt`."""
    packaged = _PACKAGE / "_data"
    return packaged if packaged.is_dir() else _CHECKOUT


def default_overlays() -> Path:
    """The built-in overlay set."""
    return data_folder() / "overlays"


def default_pins() -> Path:
    """The built-in pin file."""
    return data_folder() / "megatron_pin.txt"


def default_licenses() -> Path:
    """Licence texts of the pinned releases, by hash."""
    return _PACKAGE / "licenses"
