"""What a bug report about a cluster needs of each rank, from an allow-list; and all ranks' as one.

Values of variables that are not listed never leave the process; names, tokens and paths of users
are not among those that are.
"""

import json
import os
import platform
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

ALLOWED = re.compile(
    r"(HCCL|ASCEND_RT|ASCEND_GLOBAL|ASCEND_LAUNCH|ASCEND_WORK|GLOO|OMP|NPU|TORCH_NPU|TORCHELASTIC)"
    r"_[A-Z0-9_]+"
    r"|ACL_[A-Z_]+|CPU_AFFINITY_CONF|TASK_QUEUE_ENABLE|COMBINED_ENABLE|INF_NAN_MODE_ENABLE"
    r"|PYTORCH_NPU_ALLOC_CONF|MULTI_STREAM_MEMORY_REUSE|CUDA_DEVICE_MAX_CONNECTIONS"
    r"|STREAMS_PER_DEVICE|TORCHDYNAMO_DISABLE|TORCH_DEVICE_BACKEND_AUTOLOAD"
    r"|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|MASTER_ADDR|MASTER_PORT"
    r"|MINDSPEED_(VERIFY|VERIFY_TIMEOUT_S|RUN_ID)"
    r"|SLURM_(JOB_ID|STEP_ID|PROCID|LOCALID|NTASKS|NNODES|RESTART_COUNT)"
)
"""Names of variables whose values are told."""
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL", re.IGNORECASE)


def describe_rank(facts: dict[str, str]) -> dict[str, Any]:
    """This rank: facts of the check, host, devices, interfaces and allowed variables."""
    return {
        "node": platform.node(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "devices": sorted(path.name for path in Path("/dev").glob("davinci[0-9]*")),
        "interfaces": sorted(path.name for path in Path("/sys/class/net").glob("*")),
        "environment": select_variables(dict(os.environ)),
        "facts": facts,
    }


def select_variables(environment: dict[str, str]) -> dict[str, str]:
    """The variables that the allow-list lets out."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if ALLOWED.fullmatch(name) and not _SECRET.search(name)
    }


def gather_ranks(
    store: Any, report: dict[str, Any], *, rank: int, world_size: int, run_id: str, timeout_s: float
) -> dict[str, Any] | None:
    """Bring every rank's report to rank 0; it gets them by rank, with those that did not come.

    Args:
        store: shared by all ranks; None where there is one rank.
        report: of this rank.
        rank: of this process, of `world_size`.
        run_id: the same for all ranks of a run.
        timeout_s: how long rank 0 waits for all.
    """
    if store is None:
        return {"ranks": {"0": report}, "absent": []}
    base = f"mindspeed/survey/{run_id}"
    store.set(f"{base}/{rank}", json.dumps(report))
    if store.add(f"{base}/here", 1) == world_size:
        store.set(f"{base}/all", "1")
    if rank != 0:
        return None
    try:
        store.wait([f"{base}/all"], timedelta(seconds=timeout_s))
    except RuntimeError:
        present = [r for r in range(world_size) if store.check([f"{base}/{r}"])]
    else:
        present = list(range(world_size))
    return {
        "ranks": {str(r): json.loads(store.get(f"{base}/{r}")) for r in present},
        "absent": sorted(set(range(world_size)) - set(present)),
    }
