"""Apply many overlays, against one `git apply` of the same patches joined into one diff.

    python benchmarks/apply.py

Ours parses the patch files and applies them to a tree in memory, with the proof by inversion. Git
gets one process and one diff, and reads and writes its files, in memory where the system has a
folder there. Medians of the CPU time of runs that take turns; so other work doesn't count.
"""

import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from mindspeed_overlay.apply import apply_patches
from mindspeed_overlay.patch import make_patch, parse_patch, serialize_patch

ROUNDS = 7
LIMIT_RATIO = 2.0
LIMIT_MIB = 200

Case = tuple[dict[str, bytes], list[tuple[str, str, bytes]]]
"""A tree, and (overlay id, patch name, patch file) in order."""


def make_module(number: int, num_functions: int = 60) -> bytes:
    """A module of about 600 lines whose functions resemble each other."""
    lines = [f'"""Module {number}."""', "", "import torch", "", ""]
    for k in range(num_functions):
        lines += [f"def compute_{k}(x, weight, *, scale=1.0):", '    """Scale and project."""']
        lines += ["    if x is None:", "        return None", f"    y = x * scale + {k}"]
        lines += ["    y = torch.relu(y)", "    return y @ weight", "", ""]
    return "\n".join(lines).encode()


def find_function(line: int) -> str:
    """The symbol of a line of such a module: nine lines each, the last two blank."""
    number, offset = divmod(line - 6, 9)
    return f"compute_{number}" if line >= 6 and offset < 7 else "<module>"


def make_case(num_patches: int, num_files: int, *, seed: int = 0) -> Case:
    """One overlay for each patch; each edits two functions of a file."""
    choose = random.Random(seed)
    files = {f"megatron/core/m{n}.py": make_module(n) for n in range(num_files)}
    free = {path: choose.sample(range(60), 60) for path in files}
    patches = []
    for number in range(num_patches):
        path = f"megatron/core/m{number % num_files}.py"
        before = after = files[path]
        for _ in range(2):
            k = free[path].pop()
            line = b"    y = x * scale + %d\n" % k
            after = after.replace(line, line + b"    y = hook_%d(y)\n" % number, 1)
        patch = make_patch(before, after, target=path, header={}, symbol_of=find_function)
        patches.append((f"bench/p{number}", patch.name, serialize_patch(patch)))
    return files, patches


def apply_ours(case: Case) -> dict[str, bytes]:
    """Parse and apply, as the build does."""
    files, patches = case
    return apply_patches(files, [(o, parse_patch(data, name=n)) for o, n, data in patches])


def run_git(folder: Path, case: Case) -> tuple[float, dict[str, bytes]]:
    """CPU seconds of one `git apply`, and what it wrote."""
    files, patches = case
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    diff = folder / "all.diff"
    diff.write_bytes(b"".join(data[data.index(b"--- a/") :] for _, _, data in patches))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CEILING_DIRECTORIES": str(folder)}
    command = ["git", "apply", "--unidiff-zero", str(diff)]
    seconds = measure(lambda: subprocess.run(command, cwd=folder, env=env, check=True))
    return seconds, {path: (folder / path).read_bytes() for path in files}


def measure(action: Callable[[], object]) -> float:
    """CPU seconds of one call, and of the processes that it waits for."""
    start = read_cpu_clock()
    action()
    return read_cpu_clock() - start


def read_cpu_clock() -> float:
    """CPU seconds of this process and of its finished children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def compare(case: Case) -> tuple[float, float]:
    """Median CPU seconds of ours and of git, whose results must agree."""
    ours, git = [], []
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for _ in range(ROUNDS):
            ours.append(measure(lambda: apply_ours(case)))
            seconds, written = run_git(Path(folder), case)
            git.append(seconds)
        assert written == apply_ours(case)
    return statistics.median(ours), statistics.median(git)


def main() -> int:
    """Print the table; 1 when a limit is passed."""
    unit = 1 if sys.platform == "darwin" else 1024
    print("| patches | files | ours | git apply | ratio |\n|---|---|---|---|---|")
    worst, per_patch = 0.0, {}
    for num_patches, num_files in ((72, 72), (250, 250), (1000, 1000), (1000, 72)):
        case = make_case(num_patches, num_files)
        ours, git = compare(case)
        worst = max(worst, ours / git)
        if num_patches == num_files:
            per_patch[num_patches] = ours / num_patches
        times = f"{ours * 1e3:.1f} ms | {git * 1e3:.1f} ms | {ours / git:.2f}"
        print(f"| {num_patches} | {num_files} | {times} |")
    growth = per_patch[1000] / per_patch[72]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    print(f"\nworst ratio {worst:.2f} (limit {LIMIT_RATIO})")
    print(f"cost of one patch, 1,000 against 72: {growth:.2f} (1 is linear)")
    print(f"peak memory {memory:.0f} MiB (limit {LIMIT_MIB})")
    return int(worst > LIMIT_RATIO or memory > LIMIT_MIB)


if __name__ == "__main__":
    sys.exit(main())
