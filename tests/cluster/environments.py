"""Environments to install into, and a command's way out of the network."""

import subprocess
import sys
import sysconfig
from pathlib import Path

NO_NETWORK = ["unshare", "--net"]


def has_namespaces() -> bool:
    """Whether this user may run a command without a network."""
    done = subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False)
    return done.returncode == 0


def make_environment(folder: Path) -> Path:
    """A new environment's Python, with the pip of this one: making pip anew takes longest."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    lent = folder / "lent"
    lent.mkdir()
    (lent / "pip").symlink_to(Path(sysconfig.get_path("purelib"), "pip"))
    python = folder / "bin/python"
    (site_of(python) / "lent.pth").write_text(f"{lent}\n")
    return python


def site_of(python: Path) -> Path:
    """Where an environment's packages are."""
    return next((python.parents[1] / "lib").glob("python*/site-packages"))
