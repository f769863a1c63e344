"""Do all ranks of a job run this build, whole and unshadowed? Before anything else of the job.

    torchrun ... -m mindspeed.verify            srun ... python -m mindspeed.verify

Every rank must be started as the training will be: same Python, same folder, same environment. The
files are compared with `build.json` by one rank of each host. Exit code 0: all alike; 9: not, and
the odd ranks are named.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspeed
from mindspeed.core.agreement import (
    DEFAULT_REQUIRED,
    DisagreementError,
    LostStoreError,
    RankCheck,
    collect_facts,
    find_run_id,
)
from mindspeed.core.origin import check_origin

_FAILED = 9
_NAMED_AT_MOST = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mindspeed.verify", description=__doc__)
    parser.add_argument(
        "--require",
        default=",".join(DEFAULT_REQUIRED),
        help="facts that must be the same on all ranks (default: %(default)s)",
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for a rank")
    parser.add_argument("--lock", type=Path, help="build.lock.json: the build that must run")
    parser.add_argument("--collect", type=Path, help="write what a bug report needs of all ranks")
    chosen = parser.parse_args(arguments)
    # The store needs no device, and loading torch_npu takes seconds.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    rank, world_size = find_rank()
    facts = {**collect_facts(), **check_here(rank_on_host=find_rank_on_host())}
    required = tuple(name for name in chosen.require.split(",") if name)
    try:
        unknown = sorted({*required} - {*facts})
        if unknown:
            parser.error(f"--require names {unknown[0]!r}; known are {', '.join(facts)}")
        warnings = check_together(
            facts, rank, world_size, required, chosen.timeout, collect=chosen.collect
        )
        check_lock(facts, chosen.lock)
    except DisagreementError as error:
        # Every rank knows the whole story; one of each host tells it.
        if find_rank_on_host() == 0:
            print(f"mindspeed.verify on {platform.node()}: {error}", file=sys.stderr, flush=True)
        return _FAILED
    if rank == 0:
        for sentence in warnings:
            print(f"warning: {sentence}", file=sys.stderr)
        told = ", ".join(
            f"{name} {facts[name] or 'absent'}" for name in ("build", "torch", "torch_npu")
        )
        print(f"ok: {world_size} ranks run {told}", flush=True)
    return 0


def check_here(*, rank_on_host: int) -> dict[str, str]:
    """The facts `origin` and `files` of this process; files are read by one rank of a host."""
    try:
        check_origin()
        origin = "this build"
    except RuntimeError as error:
        origin = str(error)
    changed = find_changed_files() if rank_on_host == 0 else []
    named = ", ".join(changed[:_NAMED_AT_MOST])
    more = f" and {len(changed) - _NAMED_AT_MOST} more" if changed[_NAMED_AT_MOST:] else ""
    return {"origin": origin, "files": f"not as built: {named}{more}" if changed else "as built"}


def find_changed_files() -> list[str]:
    """Files of the build that are not what `build.json` says, and bytecode that would hide that."""
    root = Path(mindspeed.__file__).resolve().parent.parent
    build: dict[str, Any] = mindspeed.build_info()
    if not build:
        return ["mindspeed/build.json is missing"]
    changed = []
    for name, known in build["files"].items():
        file = root / name
        if not file.is_file():
            changed.append(f"{name} is missing")
        elif hashlib.sha256(file.read_bytes()).hexdigest() != known["sha256"]:
            changed.append(name)
        if file.suffix == ".py" and _is_never_checked(file):
            changed.append(f"bytecode of {name} that is never checked against it")
    return changed


def _is_never_checked(source: Path) -> bool:
    try:
        with Path(importlib.util.cache_from_source(str(source))).open("rb") as file:
            head = file.read(8)
    except OSError:
        return False
    return len(head) == 8 and struct.unpack("<I", head[4:])[0] & 3 == 1


def check_together(
    facts: dict[str, str],
    rank: int,
    world_size: int,
    required: tuple[str, ...],
    timeout_s: float,
    *,
    collect: Path | None = None,
) -> list[str]:
    """Compare with the other ranks; alone, with what is right.

    Args:
        facts: of this rank.
        rank: of this process, of `world_size`.
        world_size: number of ranks.
        required: facts that must be the same.
        timeout_s: how long to wait for a rank.
        collect: a file for what all ranks tell of themselves, written before they are compared.

    Raises:
        DisagreementError: as `RankCheck.settle`, and where this host is wrong in itself.
    """
    right = {"origin": "this build", "files": "as built"}
    warnings: list[str] = []
    if world_size > 1:
        store, release = open_store(rank, world_size, timeout_s)
        if collect:
            write_survey(store, facts, rank, world_size, collect, timeout_s)
        check = RankCheck(
            facts,
            store,
            rank,
            world_size,
            run_id=find_run_id(),
            required=required,
            timeout_s=timeout_s,
        )
        try:
            warnings = check.run()
        except LostStoreError:
            raise
        except DisagreementError:
            release()
            raise
        release()
    elif collect:
        write_survey(None, facts, rank, world_size, collect, timeout_s)
    for name, value in right.items():
        if name in required and facts[name] != value:
            raise DisagreementError(f"all ranks are alike and wrong: {name}: {facts[name]}")
    return warnings


def write_survey(
    store: Any, facts: dict[str, str], rank: int, world_size: int, path: Path, timeout_s: float
) -> None:
    """One file about all ranks, written by rank 0."""
    from mindspeed.core.survey import describe_rank, gather_ranks

    found = gather_ranks(
        store,
        describe_rank(facts),
        rank=rank,
        world_size=world_size,
        run_id=find_run_id(),
        timeout_s=timeout_s,
    )
    if found is not None:
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def check_lock(facts: dict[str, str], lock: Path | None) -> None:
    """Compare the build with a lock file.

    Raises:
        DisagreementError: it is another one.
    """
    if lock:
        wanted = json.loads(lock.read_text("utf-8"))["digest"][:16]
        if facts["build"] != wanted:
            raise DisagreementError(f"this is build {facts['build']}, and {lock} is of {wanted}")


def open_store(rank: int, world_size: int, timeout_s: float) -> tuple[Any, Any]:
    """The store that all ranks share, and what a rank calls when it needs it no more.

    Under torchrun that is the agent's store; else rank 0 keeps one at MASTER_ADDR:MASTER_PORT.

    Raises:
        DisagreementError: it cannot be reached.
    """
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = find_master()
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    keeps = rank == 0 and not shared
    try:
        store = TCPStore(
            host,
            port,
            is_master=keeps,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        message = (
            f"rank {rank} cannot reach the store at {host}:{port}: {str(error).splitlines()[0]}"
        )
        raise DisagreementError(message) from error
    key = f"mindspeed/verify/{find_run_id()}/left"

    def release() -> None:
        # Whoever keeps the store stays until the others have read what they need.
        if store.add(key, 1) == world_size:
            store.set(f"{key}/all", "1")
        if keeps:
            try:
                store.wait([f"{key}/all"], timedelta(seconds=10))
            except RuntimeError:
                return

    return store, release


def find_rank() -> tuple[int, int]:
    """Rank and number of ranks, from torchrun's or Slurm's environment; alone without either."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def find_rank_on_host() -> int:
    """The number of this rank on its host."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))


def find_master() -> tuple[str, int]:
    """Where the store is: MASTER_ADDR and MASTER_PORT, or the first host of a Slurm step."""
    host = os.environ.get("MASTER_ADDR") or first_slurm_host()
    job = int(os.environ.get("SLURM_JOB_ID", "0"))
    return host, int(os.environ.get("MASTER_PORT") or 20000 + job % 20000)


def first_slurm_host() -> str:
    """The first host of this Slurm step; this host where there is none.

    Raises:
        DisagreementError: Slurm's `scontrol` cannot expand its list of hosts.
    """
    hosts = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    if not hosts:
        return "127.0.0.1"
    if not re.search(r"[\[,]", hosts):
        return hosts
    command = ["scontrol", "show", "hostnames", hosts]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise DisagreementError(f"set MASTER_ADDR: scontrol does not expand {hosts}") from error
    return done.stdout.split()[0]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread may wait for a store that never answers, and hold what exiting needs.
    os._exit(code)
