"""Seeds and process groups, under the names that MindSpeed's unit tests import."""

import os
import random
from typing import Any

import torch


def set_random_seed(seed: int) -> None:
    """Seed Python, numpy, torch and every device."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    torch.npu.manual_seed_all(seed)  # type: ignore[attr-defined, unused-ignore]


def set_deterministic(seed: int) -> None:
    """Seed, and ask torch and HCCL for operators that repeat bit for bit."""
    os.environ["HCCL_DETERMINISTIC"] = "true"
    torch.use_deterministic_algorithms(True)
    set_random_seed(seed)


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    *rest: Any,
    **sizes: Any,
) -> None:
    """Make Megatron's process groups anew; whatever groups it had are destroyed before.

    Args:
        tensor_model_parallel_size: ranks that share a layer.
        pipeline_model_parallel_size: ranks that share the depth.
        rest: further positional sizes, as this release of Megatron takes them.
        sizes: the same by keyword. One that is None and that this release lacks is dropped.
    """
    import inspect

    from megatron.core import parallel_state

    known = inspect.signature(parallel_state.initialize_model_parallel).parameters
    taken = {key: size for key, size in sizes.items() if key in known or size is not None}
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size, pipeline_model_parallel_size, *rest, **taken
    )
