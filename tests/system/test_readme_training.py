"""The pretraining command of the README, from an empty folder, on two simulated devices."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.trees import GIT_VARIABLE, Trees

ROOT = Path(__file__).parents[2]
FUSED = ("--use-flash-attn", "--use-fused-rmsnorm", "--use-fused-swiglu")
# bf16: each fusion saves a rounding of 2^-9 here and there, losses are near 8.
CLOSE = 2e-2

pytestmark = pytest.mark.skipif(
    GIT_VARIABLE not in os.environ, reason=f"NOT RUN: the full tree needs {GIT_VARIABLE}"
)


def read_command(page: str) -> list[str]:
    """The torchrun command of a README."""
    text = ROOT.joinpath(page).read_text("utf-8")
    found = re.findall(r"```bash\n(torchrun .*?)```", text, re.DOTALL)
    assert len(found) == 1
    return shlex.split(found[0].replace("\\\n", " "))


def run_command(command: list[str], tree: Path, folder: Path) -> dict[int, float]:
    """Run it where `tree` is all that is installed; losses by iteration."""
    folder.mkdir()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    simulated = [sys.executable, "-m", "ascend_sim", "run", "--devices", "2", "--"]
    environment = {
        "PYTHONPATH": os.pathsep.join([str(tree), str(ROOT / "tools")]),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    process = subprocess.Popen(
        [*simulated, *launcher, *command[1:]],
        env=os.environ | environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=240)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # ranks outlive a launcher that is killed
    assert process.returncode == 0, printed[-2000:] + errors[-6000:]
    pattern = r"iteration +(\d+)/.*lm loss: (\S+) .*grad norm: (\S+)"
    rows = re.findall(pattern, printed)
    assert len({norm for *_, norm in rows}) == 10
    return {int(step): float(loss) for step, loss, _ in rows}


def test_both_readmes_give_the_same_command() -> None:
    assert read_command("README.md") == read_command("README.zh.md")
    assert set(FUSED) < set(read_command("README.md"))


def test_command_trains_ten_steps_as_without_fusions(trees: Trees, tmp_path: Path) -> None:
    tree = trees.patched("core_v0.12.1", tree="full")
    command = read_command("README.md")
    fused = run_command(command, tree, tmp_path / "fused")
    plain = [word for word in command if not word.startswith("--use-")]
    unfused = run_command(plain, tree, tmp_path / "unfused")
    assert set(fused) == set(range(1, 11))
    assert fused[10] < fused[1]
    assert fused == pytest.approx(unfused, abs=CLOSE)
