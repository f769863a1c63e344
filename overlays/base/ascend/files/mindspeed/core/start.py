"""What every run checks when Megatron starts: the right Megatron, and the same one everywhere.

`initialize_model_parallel` calls it once on every rank, before any group or model is made.
`MINDSPEED_VERIFY=0` leaves the comparison out, and must be set on all ranks or on none.
"""

import os
import warnings

import mindspeed
from mindspeed.core.floors import check_torch_npu
from mindspeed.core.origin import check_origin


def check_start() -> None:
    """Make sure that nothing hides this build and that all ranks run it.

    Raises:
        RuntimeError: torch_npu is older than an overlay needs (`check_torch_npu`), another Megatron
            is imported here (`check_origin`), the ranks differ in build, torch or torch_npu, or a
            rank does not come.
    """
    check_torch_npu(mindspeed.build_info())
    if os.environ.get("MINDSPEED_VERIFY") == "0" or not _has_peers():
        check_origin()
        return
    try:
        check_origin()
    except RuntimeError as error:
        # Said to the others first: else they would wait for a rank that has left.
        compare_default_group(origin=str(error))
        raise
    compare_default_group()


def compare_default_group(*, origin: str = "this build", timeout_s: float | None = None) -> None:
    """Compare all ranks of the default process group through its store.

    Raises:
        DisagreementError: as `RankCheck.settle`.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    from mindspeed.core.agreement import RankCheck, collect_facts, find_run_id

    seconds = timeout_s or float(os.environ.get("MINDSPEED_VERIFY_TIMEOUT_S", "300"))
    check = RankCheck(
        {**collect_facts(), "origin": origin},
        _get_default_store(),
        dist.get_rank(),
        dist.get_world_size(),
        run_id=find_run_id(),
        timeout_s=seconds,
    )
    for sentence in check.run():
        if dist.get_rank() == 0:
            warnings.warn(f"the ranks are not alike: {sentence}", stacklevel=2)


def _has_peers() -> bool:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return False
    return dist.get_world_size() > 1 and dist.get_backend() != "fake"
