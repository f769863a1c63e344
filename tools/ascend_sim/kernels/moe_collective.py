"""Expert products fused with the exchange of tokens between expert-parallel ranks.

Operators: npu_alltoallv_gmm (exchange, then multiply) and npu_gmm_alltoallv (multiply, then
exchange), each with an optional product of a shared expert beside it. Follows the torch_npu pages.
The lists of counts hold, for each rank, one count for each of its experts: [p · e], rank-major; so
callers pass the `recv_counts` of the first operator as `send_counts` of the second.

Dims: p ranks, e experts on a rank, h and n widths, a and b rows sent and received.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.comm import all_to_all, find_group
from ascend_sim.kernels.rules import multiply_in_fp32, refuse, require, require_dtype
from ascend_sim.registry import kernel

_HALVES = (torch.float16, torch.bfloat16)
_WORLD_SIZES = (8, 16, 32, 64, 128)
_MAX_COUNTS = 256
_MAX_EXPERTS = 32


def _check(
    name: str,
    gmm_x: Tensor,
    gmm_weight: Tensor,
    ep_world_size: int,
    counts: tuple[list[int], list[int]],
    count_tensors: tuple[Tensor | None, Tensor | None],
) -> None:
    require_dtype(name, "gmm_x", gmm_x, _HALVES)
    require(name, gmm_weight.dtype == gmm_x.dtype, "gmm_x and gmm_weight must have one dtype")
    require(name, gmm_x.dim() == 2, f"gmm_x must be 2-D, not {gmm_x.dim()}-D")
    require(name, gmm_weight.dim() == 3, f"gmm_weight must be 3-D, not {gmm_weight.dim()}-D")
    allowed = list(_WORLD_SIZES)
    require(name, ep_world_size in allowed, f"ep_world_size must be in {allowed}")
    experts = gmm_weight.size(0)
    require(name, experts <= _MAX_EXPERTS, f"a rank must hold at most {_MAX_EXPERTS} experts")
    for label, values in zip(("send_counts", "recv_counts"), counts, strict=True):
        length = experts * ep_world_size
        require(name, len(values) == length <= _MAX_COUNTS, f"{label} must hold {length} counts")
        require(name, all(value >= 0 for value in values), f"{label} must not be negative")
    require(name, sum(counts[0]) == gmm_x.size(0), "send_counts must add up to the rows of gmm_x")
    if any(tensor is not None for tensor in count_tensors):
        refuse(name, "counts as tensors")


def _multiply_shared(
    name: str, x: Tensor | None, weight: Tensor | None, transpose: bool
) -> Tensor | None:
    require(name, (x is None) == (weight is None), "mm_x and mm_weight must be given together")
    if x is None or weight is None:
        return None
    require_dtype(name, "mm_x", x, _HALVES)
    require(name, weight.dtype == x.dtype, "mm_x and mm_weight must have one dtype")
    require(name, x.dim() == weight.dim() == 2, "mm_x and mm_weight must be 2-D")
    return multiply_in_fp32(x, weight.T if transpose else weight).to(x.dtype)


def _per_rank(counts: list[int], experts: int) -> list[int]:
    return [sum(counts[start : start + experts]) for start in range(0, len(counts), experts)]


def _expert_major(counts: list[int], experts: int) -> tuple[Tensor, list[int]]:
    """Row numbers of a rank-major layout in (expert, rank) order, and the rows of each expert."""
    blocks = torch.split(torch.arange(sum(counts)), counts)
    order = torch.cat([block for expert in range(experts) for block in blocks[expert::experts]])
    return order, [sum(counts[expert::experts]) for expert in range(experts)]


def _multiply_groups(x: Tensor, weight: Tensor, sizes: list[int], transpose: bool) -> Tensor:
    matrices = weight.transpose(1, 2) if transpose else weight
    parts = zip(torch.split(x, sizes), matrices, strict=True)
    return torch.cat([multiply_in_fp32(rows, matrix) for rows, matrix in parts]).to(x.dtype)


@kernel("npu_alltoallv_gmm", document="torch_npu-npu_alltoallv_gmm")
def alltoallv_gmm(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    send_counts_tensor: Tensor | None = None,
    recv_counts_tensor: Tensor | None = None,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    permute_out_flag: bool = False,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Send tokens to the ranks of their experts, sort them by expert, multiply.

    Args:
        gmm_x: [a, h], fp16 or bf16, in (rank, expert) order of their destinations.
        gmm_weight: [e, h, n] ([e, n, h] with `trans_gmm_weight`), dtype of gmm_x.
        hcom: communicator name of the expert-parallel group.
        ep_world_size: p, in {8, 16, 32, 64, 128}.
        send_counts: [p·e] rows for each expert of each rank.
        recv_counts: [p·e] rows from each rank for each expert here.
        send_counts_tensor: not available on the device; so is `recv_counts_tensor`.
        mm_x: [s, h2], the shared expert's tokens, with `mm_weight` [h2, n2].
        permute_out_flag: also return the sorted tokens.
        comm_mode: no effect on the result.

    Returns:
        Products [b, n] in (expert, rank) order, the shared expert's or None, tokens [b, h] or None.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: counts as tensors.
    """
    name = "npu_alltoallv_gmm"
    counts, tensors = (send_counts, recv_counts), (send_counts_tensor, recv_counts_tensor)
    _check(name, gmm_x, gmm_weight, ep_world_size, counts, tensors)
    experts = gmm_weight.size(0)
    group = find_group(name, hcom, ep_world_size)
    send, receive = _per_rank(send_counts, experts), _per_rank(recv_counts, experts)
    received = all_to_all(group, gmm_x, send, receive)
    order, sizes = _expert_major(recv_counts, experts)
    permuted = received[order]
    product = _multiply_groups(permuted, gmm_weight, sizes, trans_gmm_weight)
    shared = _multiply_shared(name, mm_x, mm_weight, trans_mm_weight)
    return product, shared, permuted if permute_out_flag else None


@kernel("npu_gmm_alltoallv", document="torch_npu-npu_gmm_alltoallv")
def gmm_alltoallv(
    gmm_x: Tensor,
    gmm_weight: Tensor,
    hcom: str,
    ep_world_size: int,
    send_counts: list[int],
    recv_counts: list[int],
    *,
    send_counts_tensor: Tensor | None = None,
    recv_counts_tensor: Tensor | None = None,
    mm_x: Tensor | None = None,
    mm_weight: Tensor | None = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Multiply the tokens of each expert, sort them by rank, send them back.

    Args:
        gmm_x: [a, h], fp16 or bf16, in (expert, rank) order, as `alltoallv_gmm` leaves them.
        gmm_weight: [e, h, n] ([e, n, h] with `trans_gmm_weight`), dtype of gmm_x.
        send_counts: [p·e] rows for each rank from each expert here.
        recv_counts: [p·e] rows from each expert of each rank.
        The other arguments: as for `alltoallv_gmm`.

    Returns:
        Products [b, n] in (rank, expert) order, the shared expert's or None.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: counts as tensors.
    """
    name = "npu_gmm_alltoallv"
    counts, tensors = (send_counts, recv_counts), (send_counts_tensor, recv_counts_tensor)
    _check(name, gmm_x, gmm_weight, ep_world_size, counts, tensors)
    experts = gmm_weight.size(0)
    order, sizes = _expert_major(send_counts, experts)
    product = _multiply_groups(gmm_x, gmm_weight, sizes, trans_gmm_weight)
    unpermuted = torch.empty_like(product)
    unpermuted[order] = product
    group = find_group(name, hcom, ep_world_size)
    send, receive = _per_rank(send_counts, experts), _per_rank(recv_counts, experts)
    received = all_to_all(group, unpermuted, send, receive)
    return received, _multiply_shared(name, mm_x, mm_weight, trans_mm_weight)
