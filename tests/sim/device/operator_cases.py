"""Operators that Megatron's code paths use, as functions of a device-independent `draw`.

A case gets `make(*shape)`, which gives the next seeded float tensor, and returns a tensor or a
sequence of tensors. The tests run it on the CPU and on the device and compare.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Make = Callable[..., Tensor]
Result = Tensor | Sequence[Any]
Case = Callable[[Make], Result]


def _ints(make: Make, *shape: int, high: int = 8) -> Tensor:
    return (make(*shape).detach().abs() * 1000).long() % high


def _mask(make: Make, *shape: int) -> Tensor:
    return make(*shape).detach() > 0


DIFFERENTIABLE: dict[str, Case] = {
    "add": lambda m: m(3, 4) + m(4),
    "add alpha": lambda m: torch.add(m(3, 4), m(3, 4), alpha=0.5),
    "add scalar": lambda m: m(3, 4) + 1,
    "rsub": lambda m: 1 - m(3, 4),
    "mul scalar": lambda m: m(3, 4) * 2.5,
    "div": lambda m: m(3, 4) / (m(3, 4).abs() + 1),
    "pow": lambda m: (m(3, 4).abs() + 1) ** 1.5,
    "pow scalar base": lambda m: 2.0 ** m(3, 4),
    "exp log": lambda m: (m(3, 4).exp() + 1).log(),
    "sqrt rsqrt": lambda m: (m(3, 4).abs() + 1).sqrt() + (m(3, 4).abs() + 1).rsqrt(),
    "sin cos": lambda m: m(3, 4).sin() + m(3, 4).cos(),
    "sigmoid tanh": lambda m: m(3, 4).sigmoid() * m(3, 4).tanh(),
    "relu": lambda m: F.relu(m(3, 4)),
    "squared relu": lambda m: F.relu(m(3, 4)).square(),
    "gelu": lambda m: F.gelu(m(3, 4)),
    "gelu tanh": lambda m: F.gelu(m(3, 4), approximate="tanh"),
    "silu": lambda m: F.silu(m(3, 4)),
    "softplus": lambda m: F.softplus(m(3, 4)),
    "leaky_relu": lambda m: F.leaky_relu(m(3, 4)),
    "clamp": lambda m: m(3, 4).clamp(-0.5, 0.5),
    "abs neg sign": lambda m: m(3, 4).abs() - m(3, 4).neg(),
    "maximum minimum": lambda m: torch.maximum(m(3, 4), m(3, 4)) + torch.minimum(m(4), m(3, 4)),
    "where": lambda m: torch.where(_mask(m, 3, 4), m(3, 4), m(3, 4)),
    "where scalar": lambda m: torch.where(_mask(m, 3, 4), m(3, 4), 0.0),
    "masked_fill": lambda m: m(3, 4).masked_fill(_mask(m, 3, 4), -1e4),
    "masked_fill tensor": lambda m: m(3, 4).masked_fill(_mask(m, 3, 4), m().detach()),
    "masked_select": lambda m: m(3, 4).masked_select(_mask(m, 3, 4)),
    "lerp": lambda m: torch.lerp(m(3, 4), m(3, 4), 0.3),
    "addcmul addcdiv": lambda m: m(3).addcmul(m(3), m(3)).addcdiv(m(3), m(3).abs() + 1),
    "sum": lambda m: m(3, 4).sum(),
    "sum dims": lambda m: m(3, 4, 5).sum((0, 2), keepdim=True),
    "mean": lambda m: m(3, 4).mean(-1),
    "var std": lambda m: m(3, 4).var(-1) + m(3, 4).std(0, keepdim=True).mean(),
    "prod": lambda m: m(3, 4).prod(-1),
    "max dim": lambda m: m(3, 4).max(-1).values,
    "max all": lambda m: m(3, 4).max(),
    "amax amin": lambda m: m(3, 4).amax(-1) - m(3, 4).amin(-1),
    "logsumexp": lambda m: m(3, 4).logsumexp(-1),
    "cumsum": lambda m: m(3, 4).cumsum(-1),
    "cumprod": lambda m: m(3, 4).cumprod(-1),
    "norm": lambda m: m(3, 4).norm(),
    "norm p": lambda m: m(3, 4).norm(3.0, dim=-1),
    "vector_norm": lambda m: torch.linalg.vector_norm(m(3, 4), dim=-1),
    "normalize": lambda m: F.normalize(m(3, 4), dim=-1),
    "topk": lambda m: m(3, 8).topk(2, dim=-1).values,
    "sort": lambda m: m(3, 8).sort(-1, descending=True).values,
    "mm": lambda m: m(3, 4) @ m(4, 5),
    "mm transposed": lambda m: m(4, 3).t() @ m(5, 4).t(),
    "matmul vector": lambda m: m(4) @ m(4, 5),
    "matmul to vector": lambda m: m(3, 4) @ m(4),
    "dot": lambda m: m(4) @ m(4),
    "matmul batch": lambda m: m(2, 3, 4) @ m(4, 5),
    "matmul broadcast": lambda m: m(2, 1, 3, 4) @ m(5, 4, 2),
    "matmul left matrix": lambda m: m(3, 4) @ m(2, 4, 5),
    "matmul batched vector": lambda m: m(2, 3, 4) @ m(4),
    "bmm": lambda m: torch.bmm(m(2, 3, 4), m(2, 4, 5)),
    "baddbmm": lambda m: torch.baddbmm(m(2, 3, 5), m(2, 3, 4), m(2, 4, 5), beta=0.5, alpha=2),
    "addmm": lambda m: torch.addmm(m(5), m(3, 4), m(4, 5)),
    "einsum": lambda m: torch.einsum("sbhd,tbhd->bhst", m(3, 2, 4, 5), m(6, 2, 4, 5)),
    "linear": lambda m: F.linear(m(2, 3, 4), m(5, 4), m(5)),
    "linear no bias": lambda m: F.linear(m(2, 3, 4), m(5, 4)),
    "outer": lambda m: torch.outer(m(3), m(4)),
    "softmax": lambda m: F.softmax(m(3, 4), dim=-1),
    "softmax first": lambda m: F.softmax(m(3, 4), dim=0),
    "softmax dtype": lambda m: F.softmax(m(3, 4), dim=-1, dtype=torch.float64),
    "log_softmax": lambda m: F.log_softmax(m(3, 4), dim=-1),
    "cross_entropy": lambda m: F.cross_entropy(m(6, 8), _ints(m, 6)),
    "cross_entropy ignore": lambda m: F.cross_entropy(m(6, 8), _ints(m, 6), ignore_index=0),
    "cross_entropy smooth": lambda m: F.cross_entropy(m(6, 8), _ints(m, 6), label_smoothing=0.1),
    "cross_entropy none": lambda m: F.cross_entropy(m(6, 8), _ints(m, 6), reduction="none"),
    "bce logits": lambda m: F.binary_cross_entropy_with_logits(m(3, 4), m(3, 4).detach().sigmoid()),
    "mse l1": lambda m: F.mse_loss(m(3), m(3)) + F.l1_loss(m(3), m(3)),
    "kl_div": lambda m: F.kl_div(
        m(3, 4).log_softmax(-1), m(3, 4).softmax(-1).detach(), reduction="sum"
    ),
    "smooth_l1": lambda m: F.smooth_l1_loss(m(3), m(3).detach()),
    "layer_norm": lambda m: F.layer_norm(m(2, 3, 4), (4,), m(4), m(4)),
    "layer_norm plain": lambda m: F.layer_norm(m(2, 3, 4), (4,)),
    "rms_norm": lambda m: F.rms_norm(m(2, 3, 4), (4,), m(4)),
    "group_norm": lambda m: F.group_norm(m(2, 4, 3), 2, m(4), m(4)),
    "batch_norm": lambda m: F.batch_norm(
        m(6, 3), m(3).detach(), m(3).detach().abs(), training=True
    ),
    "embedding": lambda m: F.embedding(_ints(m, 2, 3), m(8, 4)),
    "embedding padding": lambda m: F.embedding(_ints(m, 2, 3), m(8, 4), padding_idx=1),
    "conv1d": lambda m: F.conv1d(m(2, 3, 8), m(4, 3, 3), m(4), padding=1),
    "conv2d": lambda m: F.conv2d(m(1, 2, 5, 5), m(3, 2, 3, 3), stride=2),
    "conv3d": lambda m: F.conv3d(m(1, 2, 3, 4, 4), m(2, 2, 1, 2, 2)),
    "depthwise conv1d": lambda m: F.conv1d(m(2, 3, 8), m(3, 1, 3), m(3), padding=2, groups=3),
    "conv_transpose2d": lambda m: F.conv_transpose2d(m(1, 2, 4, 4), m(2, 3, 2, 2)),
    "avg max pool": lambda m: F.avg_pool2d(m(1, 2, 4, 4), 2) + F.max_pool2d(m(1, 2, 4, 4), 2),
    "interpolate": lambda m: F.interpolate(m(1, 2, 4, 4), scale_factor=2, mode="bilinear"),
    "cat": lambda m: torch.cat([m(2, 3), m(4, 3)], 0),
    "stack": lambda m: torch.stack([m(2, 3), m(2, 3)], 1),
    "chunk split": lambda m: [*m(4, 6).chunk(3, -1), *m(4, 6).split([1, 3], 0)],
    "unbind": lambda m: m(3, 4).unbind(0),
    "narrow select slice": lambda m: m(5, 6).narrow(0, 1, 3)[:, 2:5:2].select(1, 0),
    "transpose contiguous": lambda m: m(3, 4).transpose(0, 1).contiguous(),
    "permute reshape": lambda m: m(2, 3, 4).permute(2, 0, 1).reshape(4, 6),
    "expand": lambda m: m(3, 1).expand(3, 4) * m(3, 4),
    "repeat": lambda m: m(2, 3).repeat(2, 2),
    "repeat_interleave": lambda m: m(2, 3).repeat_interleave(2, dim=1),
    "repeat_interleave tensor": lambda m: m(3, 2).repeat_interleave(
        _ints(m, 3, high=3) + 1, dim=0, output_size=None
    ),
    "flip roll": lambda m: m(3, 4).flip(0).roll(1, 1),
    "tril triu": lambda m: m(4, 4).tril() + m(4, 4).triu(1),
    "diagonal": lambda m: m(4, 4).diagonal(),
    "pad": lambda m: F.pad(m(2, 3), (1, 2)),
    "pad reflect": lambda m: F.pad(m(1, 2, 4), (1, 1), mode="reflect"),
    "unfold": lambda m: m(8).unfold(0, 3, 2),
    "view_as_complex": lambda m: torch.view_as_real(torch.view_as_complex(m(3, 2)) * (1 + 2j)),
    "index_select": lambda m: m(8, 3).index_select(0, _ints(m, 5)),
    "gather": lambda m: m(3, 8).gather(1, _ints(m, 3, 2)),
    "take_along_dim": lambda m: torch.take_along_dim(m(3, 8), _ints(m, 3, 2), dim=1),
    "scatter": lambda m: m(3, 8).scatter(1, _ints(m, 3, 1), m(3, 1)),
    "scatter_add": lambda m: m(3, 8).scatter_add(1, _ints(m, 3, 5), m(3, 5)),
    "index_add": lambda m: m(8, 3).index_add(0, _ints(m, 5), m(5, 3)),
    "index": lambda m: m(8, 3)[_ints(m, 5)],
    "index mask": lambda m: m(3, 4)[_mask(m, 3, 4)],
    "index two": lambda m: m(8, 8)[_ints(m, 5), _ints(m, 5)],
    "index_put": lambda m: m(8, 3).index_put((_ints(m, 4),), m(4, 3), accumulate=True),
    "sdpa": lambda m: F.scaled_dot_product_attention(m(2, 2, 3, 4), m(2, 2, 3, 4), m(2, 2, 3, 4)),
    "glu": lambda m: F.glu(m(3, 4)),
    "dtype round trip": lambda m: m(3, 4).to(torch.float64).float(),
    "clone detach": lambda m: m(3, 4).clone() + m(3, 4).detach(),
    "fft": lambda m: torch.fft.irfft(torch.fft.rfft(m(8))),
    "cdist": lambda m: torch.cdist(m(3, 4), m(2, 4)),
    "logaddexp": lambda m: torch.logaddexp(m(3), m(3)),
    "erf": lambda m: m(3).erf(),
    "atan2": lambda m: torch.atan2(m(3), m(3)),
    "nan_to_num": lambda m: m(3).nan_to_num(),
    "trace": lambda m: m(3, 3).trace(),
    "meshgrid": lambda m: torch.meshgrid(m(3), m(4), indexing="ij"),
    "block_diag": lambda m: torch.block_diag(m(2, 2), m(1, 3)),
    "movedim": lambda m: m(2, 3, 4).movedim(0, -1).flatten(1),
    "cosine_similarity": lambda m: F.cosine_similarity(m(3, 4), m(3, 4)),
}


def _fill(m: Make) -> Result:
    x = m(3, 4).detach().clone()
    x[1].fill_(2.0)
    x[:, 0] = 5
    x[0, 1:3] += 1
    x.view(-1)[::5].zero_()
    return x


def _in_place(m: Make) -> Result:
    x, y = m(3, 4).detach().clone(), m(3, 4).detach()
    x.add_(y).mul_(2).sub_(1).div_(3).clamp_(-1, 1).exp_().sqrt_().neg_()
    x.addcmul_(y, y).lerp_(y, 0.5).masked_fill_(y > 0, 7.0)
    x.t().add_(1)
    return x.copy_(x.t().contiguous().t())


def _index_in_place(m: Make) -> Result:
    x = m(8, 3).detach().clone()
    index = _ints(m, 4)
    x.index_add_(0, index, m(4, 3).detach()).index_fill_(0, index[:1], 3.0)
    x[index] = 1.0
    x.scatter_(0, index[:, None], 4.0).index_copy_(0, index[:1], m(1, 3).detach())
    x[x > 0.5] = 0.25
    return x


def _out_forms(m: Make) -> Result:
    a, b = m(3, 4).detach(), m(4, 5).detach()
    grown, fitting, shared = a.new_empty(0), a.new_zeros(3, 5), a.new_zeros(6, 5)
    torch.mm(a, b, out=grown)
    torch.mm(a, b, out=fitting)
    torch.mm(a, b, out=shared[3:])
    total = a.new_empty(())
    torch.sum(a, dim=(0, 1), out=total)
    parts = a.new_empty(6, 4)
    torch.cat([a, a], out=parts)
    values, indices = a.new_empty(0), torch.empty(0, dtype=torch.long, device=a.device)
    torch.max(a, dim=1, out=(values, indices))
    torch.add(a, a, out=a)
    return [grown, fitting, shared, total, parts, values, indices, a]


def _foreach(m: Make) -> Result:
    xs = [m(3).detach().clone(), m(2, 2).detach().clone(), m().detach().clone()]
    ys = [x * 0.5 for x in xs]
    sums = torch._foreach_add(xs, ys, alpha=2)
    torch._foreach_mul_(xs, 0.9)
    torch._foreach_addcmul_(xs, ys, ys, value=0.1)
    torch._foreach_lerp_(xs, ys, 0.3)
    roots = torch._foreach_sqrt(torch._foreach_abs(xs))
    torch._foreach_div_(roots, [2.0, 3.0, 4.0])
    norms = torch._foreach_norm(xs)
    torch._foreach_copy_(ys, xs)
    torch._foreach_zero_(sums[:1])
    maxima = torch._foreach_maximum(xs, 0.0)
    return [*sums, *xs, *roots, *norms, *ys, *maxima]


PLAIN: dict[str, Case] = {
    "fill": _fill,
    "in place": _in_place,
    "index in place": _index_in_place,
    "out": _out_forms,
    "foreach": _foreach,
    "compare": lambda m: [m(3) > m(3), m(3) <= 0, m(3) == m(3), m(3).ne(0), m(3).isnan()],
    "logical": lambda m: [_mask(m, 3) & _mask(m, 3), _mask(m, 3) | _mask(m, 3), ~_mask(m, 3)],
    "logical functions": lambda m: [
        torch.logical_and(m(3), m(3)), torch.logical_not(m(3)), _mask(m, 3) ^ True,
    ],
    "any all": lambda m: [_mask(m, 3, 4).any(), _mask(m, 3, 4).all(-1), m(3).isfinite().all()],
    "integers": lambda m: [_ints(m, 4) // 3, _ints(m, 4) % 3, _ints(m, 4) << 1, _ints(m, 4) + 1],
    "argmax argmin": lambda m: [m(3, 4).argmax(-1), m(3, 4).argmin(), m(3, 4).argsort(-1)],
    "nonzero": lambda m: _mask(m, 3, 4).nonzero(),
    "nonzero tuple": lambda m: _mask(m, 3, 4).nonzero(as_tuple=True),
    "unique": lambda m: torch.unique(_ints(m, 9), return_counts=True, return_inverse=True),
    "bincount": lambda m: torch.bincount(_ints(m, 9), minlength=8),
    "histc": lambda m: torch.histc(_ints(m, 9).float(), bins=8, min=0, max=7),
    "one_hot": lambda m: F.one_hot(_ints(m, 4), 8),
    "searchsorted": lambda m: torch.searchsorted(m(6).detach().sort().values, m(4).detach()),
    "bucketize": lambda m: torch.bucketize(m(4).detach(), m(6).detach().sort().values),
    "cumsum int": lambda m: _ints(m, 5).cumsum(0),
    "count_nonzero": lambda m: _mask(m, 3, 4).count_nonzero(),
    "equal item": lambda m: m(3).sum() * 0 + float(m(3).sum().item()),
    "factories": lambda m: [
        torch.zeros(2, 3, device=m().device), torch.ones(2, device=m().device, dtype=torch.int32),
        torch.full((2,), 3.5, device=m().device), torch.full((2,), 3, device=m().device),
        torch.full((2,), True, device=m().device), torch.arange(5, device=m().device),
        torch.arange(0, 1, 0.25, device=m().device), torch.linspace(0, 1, 5, device=m().device),
        torch.eye(3, device=m().device), torch.tensor([1.0, 2.0], device=m().device),
        torch.tril_indices(3, 3, device=m().device), m(2).new_full((2,), 4.0),
        torch.zeros_like(m(3)), torch.ones_like(m(3)), torch.full_like(m(3), 2),
        m(2).detach().new_tensor([1.0]),
        torch.scalar_tensor(3.0, device=m().device), torch.logspace(0, 1, 3, device=m().device),
    ],
    "dtypes": lambda m: [
        m(3).detach().to(d)
        for d in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.int32)
    ],
    "float8": lambda m: m(4).detach().to(torch.float8_e4m3fn).float(),
    "bfloat16": lambda m: [
        m(3, 4).bfloat16() @ m(4, 2).bfloat16(), m(3).bfloat16().sum(), m(3).bfloat16() + 1,
    ],
    "resize": lambda m: m(3, 4).detach().clone().resize_(2, 2),
    "view dtype": lambda m: m(4).detach().view(torch.int32),
    "set_": lambda m: torch.empty(0, device=m().device).set_(m(3, 4).detach()),  # type: ignore[call-overload]
    "as_strided": lambda m: m(12).as_strided((3, 2), (4, 1), 1),
    "split_with_sizes_copy": lambda m: _split_copies(m),
    "flatten dense": lambda m: _flatten(m),
    "amp unscale": lambda m: _unscale(m),
    "combinations": lambda m: torch.cartesian_prod(_ints(m, 2), _ints(m, 3)),
    "median kthvalue": lambda m: [m(5).median(), m(5).kthvalue(2).values, m(3, 5).mode().values],
    "isin": lambda m: torch.isin(_ints(m, 5), _ints(m, 2)),
    "triangular": lambda m: torch.linalg.solve_triangular(
        torch.eye(3, device=m().device) * 2, m(3, 2).detach(), upper=True
    ),
    "fill_diagonal_": lambda m: [
        m(3, 4).detach().fill_diagonal_(2.0), m(9, 3).detach().fill_diagonal_(2.0, wrap=True),
        m(9, 3).detach().t().fill_diagonal_(1.0),
    ],
    "slogdet": lambda m: torch.slogdet(m(3, 3).detach() + 3 * torch.eye(3, device=m().device)),
    "allclose": lambda m: torch.tensor(float(torch.allclose(m(3), m(3)))),
}  # fmt: skip


def _split_copies(m: Make) -> Result:
    copies: Any = torch.ops.aten.split_with_sizes_copy(m(6).detach(), [2, 4])
    return list(copies)


def _flatten(m: Make) -> Result:
    flat: Tensor = torch._C._nn.flatten_dense_tensors([m(2).detach(), m(3).detach()])
    return flat


def _unscale(m: Make) -> Result:
    grads = [m(3).detach().clone(), m(2).detach().clone()]
    found = torch.zeros(1, device=grads[0].device)
    scale = torch.full((1,), 0.5, device=grads[0].device)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale)
    grads[0][0] = float("inf")
    torch._amp_foreach_non_finite_check_and_unscale_(grads[:1], found, scale)
    return [*grads, found]
