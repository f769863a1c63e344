"""npu_fusion_attention_v3 and its gradient: the form that a graph can capture.

Sequence lengths come as tensors (the device wants them on the CPU), seed and offset go out and come
back as int64 tensors of one element, and there is no numels. Otherwise it is npu_fusion_attention.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ascend_sim.kernels.attention import npu_fusion_attention_grad
from ascend_sim.kernels.attention_call import UNBOUNDED, prepare, run_forward
from ascend_sim.kernels.checks import refuse
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel

_HOST_LENGTHS = ("actual_seq_qlen", "actual_seq_kvlen")


def _read_lengths(operator: str, name: str, tensor: Tensor | None) -> list[int] | None:
    """Sequence lengths of v3, an integer tensor of one dim."""
    if tensor is None:
        return None
    integer = tensor.dim() == 1 and not tensor.dtype.is_floating_point
    require(operator, integer, f"{name} must be an integer tensor with 1 dim")
    return [int(length) for length in tensor.tolist()]


@kernel(
    "npu_fusion_attention_v3", document="torch_npu-npu_fusion_attention_v3.md", host=_HOST_LENGTHS
)
def npu_fusion_attention_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNBOUNDED,
    next_tockens: int = UNBOUNDED,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Tensor | None = None,
    actual_seq_kvlen: Tensor | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attention; returns (out, softmax_max, softmax_sum, empty, seed [1], offset [1])."""
    operator = "npu_fusion_attention_v3"
    problem = prepare(
        operator,
        query,
        key,
        value,
        head_num,
        input_layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        scale=scale,
        keep_prob=keep_prob,
        pre=pre_tockens,
        next=next_tockens,
        inner_precise=inner_precise,
        prefix=None if prefix is None else list(prefix),
        actual_seq_qlen=_read_lengths(operator, "actual_seq_qlen", actual_seq_qlen),
        actual_seq_kvlen=_read_lengths(operator, "actual_seq_kvlen", actual_seq_kvlen),
        sparse_mode=sparse_mode,
        softmax_layout=softmax_layout,
        sink=sink,
    )
    *tensors, seed, offset, _ = run_forward(operator, problem, None, 0, 0)
    out, top, total, empty = tensors
    numbers = [torch.full((1,), n, dtype=torch.int64, device="cpu") for n in (seed, offset)]
    return out, top, total, empty, numbers[0], numbers[1]


@kernel(
    "npu_fusion_attention_grad_v3",
    document="torch_npu-npu_fusion_attention_v3.md",
    host=_HOST_LENGTHS,
)
def npu_fusion_attention_grad_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor | None = None,
    softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None,
    attention_in: Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNBOUNDED,
    next_tockens: int = UNBOUNDED,
    inner_precise: int = 0,
    seed: Tensor | None = None,
    offset: Tensor | None = None,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Tensor | None = None,
    actual_seq_kvlen: Tensor | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, dpse, dsink); the last two are empty where pse or sink was not given."""
    operator = "npu_fusion_attention_grad_v3"
    if keep_prob < 1.0 and (seed is None or offset is None):
        refuse(operator, "dropout needs the seed and offset that the forward returned")
    return npu_fusion_attention_grad(
        query,
        key,
        value,
        dy,
        head_num,
        input_layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        softmax_max=softmax_max,
        softmax_sum=softmax_sum,
        softmax_in=softmax_in,
        attention_in=attention_in,
        scale_value=scale_value,
        keep_prob=keep_prob,
        pre_tockens=pre_tockens,
        next_tockens=next_tockens,
        inner_precise=inner_precise,
        seed=0 if seed is None else int(seed.item()),
        offset=0 if offset is None else int(offset.item()),
        prefix=None if prefix is None else list(prefix),
        actual_seq_qlen=_read_lengths(operator, "actual_seq_qlen", actual_seq_qlen),
        actual_seq_kvlen=_read_lengths(operator, "actual_seq_kvlen", actual_seq_kvlen),
        sparse_mode=sparse_mode,
        softmax_layout=softmax_layout,
        sink=sink,
    )
