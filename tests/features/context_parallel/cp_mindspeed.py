"""MindSpeed's context-parallel functions on ranks, for a comparison with ours.

The functions are called as its attention module calls them, with its own process groups, beside a
pristine Megatron; its patches of Megatron are not applied. Parts that do not run here have others
in their place: its arguments are a namespace, scipy (for moving rows) is empty, and its compiled
`npu_ring_attention_update` is torch_npu's operator of the same name.
"""

import importlib
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from features.context_parallel.cp_case import SCALE, Case, make_inputs
from features.context_parallel.cp_measures import cut_grad, measure_call
from harness.worker import enter_tree

_PACKAGE = "mindspeed.core.context_parallel"
_TE = "mindspeed.te.pytorch.attention.dot_product_attention"
_MASK_SIZE = 2048  # of the operator's compressed causal mask
_ARGUMENTS = SimpleNamespace(
    tp_2d=False,
    use_legacy_models=False,
)


def measure(cases: list[Case], mindspeed: str, megatron: str) -> list[dict[str, Any]]:
    """The numbers of `measure_call` for each case.

    Args:
        cases: the rows of each rank are those of `place`.
        mindspeed: the folder above `mindspeed`, of a release for Megatron core 0.12.1.
        megatron: the folder above a pristine `megatron` of that release.
    """
    enter_tree(megatron, lend_triton=True)
    sys.path.insert(0, mindspeed)
    _stand_in()
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(context_parallel_size=dist.get_world_size())
    return [_measure(case) for case in cases]


def place(case: Case, size: int) -> Case:
    """The case with its rows where MindSpeed's batches have them.

    Ulysses: rank after rank. The hybrid: a zigzag over rings, cut among neighbours.
    """
    if case.algorithm == "ulysses":
        return replace(case, uneven=(case.length // size,) * size)
    return replace(case, cut_ring=case.algorithm == "hybrid")


def _merge(*parts: Any) -> Any:
    import torch_npu

    *tensors, ends, layout = parts
    return torch_npu.npu_ring_attention_update(*tensors, actual_seq_qlen=ends, input_layout=layout)


def _stand_in() -> None:
    """What MindSpeed imports and cannot have here; see the module's docstring."""
    arguments: Any = ModuleType("mindspeed.args_utils")
    arguments.get_full_args = lambda: _ARGUMENTS
    eigen: Any = ModuleType("scipy.sparse.linalg")
    eigen.eigsh = None
    package = ModuleType(_TE)
    package.__path__ = [f"{sys.path[0]}/{_TE.replace('.', '/')}"]
    builders: Any = ModuleType("mindspeed.op_builder")
    compiled = SimpleNamespace(npu_ring_attention_update=_merge)
    builders.__getattr__ = lambda name: lambda: SimpleNamespace(load=lambda: compiled)
    names = {"mindspeed.args_utils": arguments, "mindspeed.op_builder": builders}
    names |= {"scipy.sparse.linalg": eigen, _TE: package}
    names |= {name: ModuleType(name) for name in ("scipy", "scipy.sparse")}
    sys.modules.update(names)


def _measure(case: Case) -> dict[str, Any]:
    _, given, grad, _, _ = make_inputs(case)
    _set_groups(case)
    attend = {
        "ring": _make_ring,
        "double_ring": _make_ring,
        "ulysses": _make_ulysses,
        "hybrid": _make_hybrid,
        "kv_allgather": _make_kv_allgather,
    }[case.algorithm](case)
    return measure_call(lambda: attend(*given), given, cut_grad(case, grad))


def _set_groups(case: Case) -> None:
    from mindspeed.core.context_parallel import model_parallel_utils as groups

    names = {
        "ulysses": "ulysses_cp_algo",
        "hybrid": "hybrid_cp_algo",
        "kv_allgather": "kvallgather_cp_algo",
    }
    size = dist.get_world_size()
    vars(_ARGUMENTS).update(
        context_parallel_size=size,
        context_parallel_algo=names.get(case.algorithm, "megatron_cp_algo"),
        context_parallel_kv_cache_policy=None,
        use_cp_send_recv_overlap=case.lanes > 1,
        use_fused_ring_attention_update=case.fused_merge,
        cp_window_size=case.window,
        ulysses_degree_in_cp=case.ulysses,
    )
    groups.initialize_context_parallel_group_for_send_recv_overlap(1, 1, size, {})
    groups.initialize_context_parallel_group_for_hybrid_cp(1, 1, size, {})
    groups.initialize_context_parallel_group_for_double_ring(1, 1, size, {})


def _causal_mask() -> Tensor:
    return torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool, device="npu").triu_(1)


def _make_ring(case: Case) -> Any:
    from megatron.core import parallel_state
    from mindspeed.core.context_parallel import model_parallel_utils as groups
    from mindspeed.core.context_parallel.ring_context_parallel import ring_context_parallel

    hybrid = case.algorithm == "hybrid"
    group = parallel_state.get_context_parallel_group()
    group = groups.get_context_parallel_group_for_hybrid_ring() if hybrid else group
    overlap = groups.get_context_parallel_group_for_send_recv_overlap(check_initialized=False)
    inside = groups.get_ring_group_for_intra_window_send_recv_overlap()
    parameters = {
        "causal": case.mask == "causal",
        "cp_group": group,
        "cp_size": group.size(),
        "rank": group.rank(),
        "cp_global_ranks": dist.get_process_group_ranks(group),
        "cp_group_for_send_recv_overlap": overlap if case.lanes > 1 else None,
        "cp_inner_ranks": groups.get_ring_ranks_for_intra_window(),
        "cp_outer_ranks": groups.get_ring_ranks_for_inter_window_kv(),
        "cp_dkv_outer_ranks": groups.get_ring_ranks_for_inter_window_dkv(),
        "cp_group_for_intra_window": groups.get_ring_group_for_intra_window(),
        "cp_group_for_intra_window_send_recv_overlap": inside if case.lanes > 1 else None,
        "megatron_cp_in_bnsd": case.bnsd,
        "cache_policy": case.keep or None,
    }
    mask = _causal_mask()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        heads = q.shape[2]
        flat = (x.flatten(2) for x in (q, k, v))
        return ring_context_parallel.ringattn_context_parallel(
            *flat, heads, parameters, softmax_scale=SCALE, attn_mask=mask
        )

    return attend


class _Local(torch.nn.Module):
    """What MindSpeed's Ulysses is given to call between its exchanges."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
        return self.attend(q, k, v)


def _make_ulysses(case: Case) -> Any:
    import torch_npu
    from megatron.core import parallel_state

    mask = _causal_mask()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        heads = q.shape[2]
        flat = (x.flatten(2) for x in (q, k, v))
        return torch_npu.npu_fusion_attention(
            *flat, heads, "SBH", atten_mask=mask, scale=SCALE, sparse_mode=3
        )[0]

    return _wrap(attend, parallel_state.get_context_parallel_group())


def _wrap(attend: Any, group: dist.ProcessGroup) -> Any:
    from mindspeed.core.context_parallel.ulysses_context_parallel import ulysses_context_parallel

    return ulysses_context_parallel.UlyssesContextAttention(_Local(attend), group)


def _make_hybrid(case: Case) -> Any:
    from mindspeed.core.context_parallel import model_parallel_utils as groups

    ring = _make_ring(case)
    return _wrap(ring, groups.get_context_parallel_group_for_hybrid_ulysses())


def _make_kv_allgather(case: Case) -> Any:
    import torch_npu
    from megatron.core import parallel_state

    module = importlib.import_module(f"{_TE}.kvallgather_context_parallel")
    mask, stream = _causal_mask(), torch_npu.npu.Stream()
    group = parallel_state.get_context_parallel_group()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        heads = q.shape[2]
        flat = (x.flatten(2) for x in (q, k, v))
        options = ("sbh", "causal", 0.0, SCALE, False, group, stream)
        return module.AttnFuncWithCPAndKVAllGatherForSBHD.apply(*flat, heads, mask, *options)

    return attend
