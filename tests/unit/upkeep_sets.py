"""Three small releases of an upstream, and an overlay set over them, for tests of upkeep."""

from collections.abc import Mapping
from pathlib import Path

from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.drift.symbols import Symbols
from mindspeed_overlay.patch import make_patch, serialize_patch
from mindspeed_overlay.syntax import parse_module
from mindspeed_overlay.tree import git_blob_id
from unit.overlay_sets import TAGS, load, make_pins, write_overlay, write_series

MLP = """\
import torch

from megatron.core.utils import divide


class MLP:
    def __init__(self, size):
        self.size = divide(size, 2)

    def forward(self, x):
        x = x + 0
        y = torch.relu(x)
        return y * self.size
"""
UTILS = """\
SCALE = 2


def divide(a, b):
    return a // b


def get_rank():
    return 0


class Group:
    def __init__(self, ranks):
        self.ranks = ranks

    def size(self):
        return len(self.ranks)
"""
V1: dict[str, str] = {
    "megatron/core/__init__.py": "",
    "megatron/core/mlp.py": MLP,
    "megatron/core/utils.py": UTILS,
}
# A docstring, a moved line, nothing that matters.
V2 = {**V1, "megatron/core/mlp.py": MLP.replace("x):\n", 'x):\n        """Compute."""\n')}
# The edited function changes, the called one gets a parameter, another one moves.
V3 = {
    **V1,
    "megatron/core/mlp.py": MLP.replace("x = x + 0", "x = x + 1"),
    "megatron/core/utils.py": UTILS.replace("divide(a, b)", "divide(a, b, exact=True)").replace(
        "def get_rank():\n    return 0\n\n\n", ""
    ),
    "megatron/core/ranks.py": "def get_rank():\n    return 0\n",
}
RELEASES: Mapping[str, Mapping[str, str]] = dict(zip(TAGS, (V1, V2, V3), strict=True))

HELPER = """\
from megatron.core import utils
from megatron.core.utils import Group, divide


class Ours(Group):
    pass


def half(x):
    return divide(x, 2), utils.get_rank
"""
HEADER = {
    "Subject": ("Do it here",),
    "Feature": ("base/one",),
    "Origin": ("written for this overlay",),
    "Forwarded": ("not-needed",),
    "Last-Update": ("2025-01-01",),
    "Remove-When": ("never",),
}


def encode(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


def write_patch(
    before: str, after: str, *, target: str, feature: str, blobs: Mapping[str, str] | None = None
) -> str:
    """A canonical patch; `blobs` maps releases to the pristine text of the target."""
    data = before.encode()
    served = {tag: files[target] for tag, files in RELEASES.items()} if blobs is None else blobs
    lines = tuple(f"{tag} {git_blob_id(text.encode())}" for tag, text in served.items())
    made = make_patch(
        data,
        after.encode(),
        target=target,
        header={**HEADER, "Feature": (feature,), "Base-Blob": lines},
        symbol_of=parse_module(data).symbol_at,
        reason="Because.",
    )
    return serialize_patch(made).decode()


def hook(text: str) -> str:
    """MLP.forward with our call in it."""
    return text.replace("        return y", "        y = half(y)\n        return y").replace(
        "import torch\n", "import torch\nfrom mindspeed.core.help import half\n"
    )


def write_set(root: Path) -> Path:
    """`base/one` patches MLP.forward on every release with one form, and has a file of its own."""
    write_series(root, "base/one")
    patch = write_patch(MLP, hook(MLP), target="megatron/core/mlp.py", feature="base/one")
    write_overlay(
        root,
        "base/one",
        **{
            "patches__core_v1__megatron.core.mlp.patch": patch,
            "files__mindspeed__core__help.py": HELPER,
        },
    )
    return root


def survey(root: Path, releases: Mapping[str, Mapping[str, str]] = RELEASES) -> Survey:
    """The set at `root`, on these releases."""
    opened = {tag: Symbols(encode(files)) for tag, files in releases.items()}
    return Survey(load(root), make_pins(), opened=opened)
