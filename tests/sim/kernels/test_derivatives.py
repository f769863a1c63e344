"""torch_npu's own derivative formulas over the reference kernels, on the simulated device.

Each operator runs as `torch_npu.*` on device tensors; its gradients come from the C++ autograd
formulas, which call the backward operators. They must be those of the float64 definition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import ascend_sim
from sim.kernels import dense_attention as dense
from sim.kernels.numeric import assert_near, draw, gradients

ascend_sim.install()
import torch_npu  # noqa: E402

Function = Callable[..., Any]
VERSIONS = {1: "npu_fusion_attention", 2: "npu_fusion_attention_v2", 3: "npu_fusion_attention_v3"}


@dataclass(frozen=True)
class Derivative:
    """A device call of some leaves, its float64 definition, and the shapes of the leaves."""

    call: Function
    definition: Callable[..., Tensor]
    shapes: Sequence[tuple[int, ...]]


def rms(x: Tensor, gamma: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gamma


def rotate(x: Tensor, mode: str) -> Tensor:
    if mode == "half":
        half = x.shape[-1] // 2
        return torch.cat([-x[..., half:], x[..., :half]], -1)
    turned = torch.empty_like(x)
    turned[..., 0::2], turned[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return turned


def attention(*, scale: float = 0.3, **options: Any) -> Callable[..., Tensor]:
    """Dense attention over BNSD tensors; a fourth leaf is the pse, a fifth the sink."""

    def definition(q: Tensor, k: Tensor, v: Tensor, *extra: Tensor) -> Tensor:
        parts = []
        for b in range(q.shape[0]):
            more = dict(options)
            if extra:
                more.update(bias=extra[0][b], sink=extra[1])
            parts.append(dense.attend(q[b], k[b], v[b], scale=scale, **more)[0])
        return torch.stack(parts)

    return definition


MASK = dense.compressed_mask(3)
KEPT = dense.kept_matrix(3, 4, 5)
QKV = [(2, 4, 4, 6), (2, 2, 5, 6), (2, 2, 5, 3)]

DERIVATIVES = {
    "swiglu": Derivative(
        lambda x: torch_npu.npu_swiglu(x, dim=0),
        lambda x: functional.silu(x[:3]) * x[3:],
        [(6, 5)],
    ),
    "geglu": Derivative(
        lambda x: torch_npu.npu_geglu(x, -1, 0)[0],
        lambda x: x[:, :4] * functional.gelu(x[:, 4:]),
        [(3, 8)],
    ),
    "gelu": Derivative(
        lambda x: torch_npu.npu_gelu(x, approximate="tanh"),
        lambda x: functional.gelu(x, approximate="tanh"),
        [(3, 8)],
    ),
    "fast_gelu": Derivative(
        torch_npu.npu_fast_gelu, lambda x: x * torch.sigmoid(1.702 * x), [(3, 8)]
    ),
    "silu": Derivative(torch_npu.npu_silu, functional.silu, [(3, 8)]),
    "rms_norm": Derivative(lambda x, g: torch_npu.npu_rms_norm(x, g)[0], rms, [(3, 2, 8), (8,)]),
    "rotary_mul half": Derivative(
        lambda x, c, s: torch_npu.npu_rotary_mul(x, c, s),
        lambda x, c, s: x * c + rotate(x, "half") * s,
        [(2, 3, 4, 6), (1, 3, 1, 6), (1, 3, 1, 6)],
    ),
    "rotary_mul interleave": Derivative(
        lambda x, c, s: torch_npu.npu_rotary_mul(x, c, s, "interleave"),
        lambda x, c, s: x * c + rotate(x, "interleave") * s,
        [(2, 3, 4, 6), (1, 3, 1, 6), (1, 3, 1, 6)],
    ),
    "deep_norm": Derivative(
        lambda x, gx, b, g: torch_npu.npu_deep_norm(x, gx, b, g, 0.7, 1e-5)[2],
        lambda x, gx, b, g: functional.layer_norm(0.7 * x + gx, (8,), g, b, 1e-5),
        [(3, 2, 8), (3, 2, 8), (8,), (8,)],
    ),
    "add_layer_norm": Derivative(
        lambda a, b, g, c: torch_npu.npu_add_layer_norm(a, b, g, c, 1e-5, True)[0],
        lambda a, b, g, c: functional.layer_norm(a + b, (8,), g, c, 1e-5),
        [(3, 2, 8), (3, 2, 8), (8,), (8,)],
    ),
    "scaled_masked_softmax": Derivative(
        lambda x: torch_npu.npu_scaled_masked_softmax(x, MASK[:32, :32].to("npu"), 0.5, False),
        lambda x: torch.softmax((x * 0.5).masked_fill(MASK[:32, :32], -1e4), -1),
        [(1, 2, 32, 32)],
    ),
    "cross_entropy_loss": Derivative(
        lambda x: torch_npu.npu_cross_entropy_loss(x, torch.arange(5).to("npu"))[0],
        lambda x: functional.cross_entropy(x, torch.arange(5)).reshape(1),
        [(5, 9)],
    ),
    "fusion_attention": Derivative(
        lambda q, k, v: torch_npu.npu_fusion_attention(
            q, k, v, 4, "BNSD", atten_mask=MASK.to("npu"), scale=0.3, sparse_mode=3
        )[0],
        attention(kept=KEPT),
        QKV,
    ),
    "fusion_attention pse and sink": Derivative(
        lambda q, k, v, p, s: torch_npu.npu_fusion_attention(
            q, k, v, 4, "BNSD", pse=p, scale=0.3, sink=s
        )[0],
        attention(),
        [*QKV, (2, 4, 4, 5), (4,)],
    ),
    "fusion_attention_v2": Derivative(
        lambda q, k, v, p, s: torch_npu.npu_fusion_attention_v2(
            q, k, v, 4, "BNSD", pse=p, scale=0.3, sink=s, pse_type=0
        )[0],
        attention(bias_before_scale=False),
        [*QKV, (2, 4, 4, 5), (4,)],
    ),
    "fusion_attention_v3": Derivative(
        lambda q, k, v, p, s: torch_npu.npu_fusion_attention_v3(
            q, k, v, 4, "BNSD", pse=p, scale=0.3, sink=s
        )[0],
        attention(),
        [*QKV, (2, 4, 4, 5), (4,)],
    ),
}


@pytest.mark.parametrize("name", sorted(DERIVATIVES))
def test_formula_calls_the_backward_kernel_rightly(name: str) -> None:
    case = DERIVATIVES[name]
    leaves = [draw(*shape, seed=s) for s, shape in enumerate(case.shapes)]
    on_device = [leaf.to("npu").requires_grad_() for leaf in leaves]
    out = case.call(*on_device)
    assert out.device.type == "npu"
    expected = case.definition(*(leaf.double() for leaf in leaves))
    assert_near(out.detach().cpu(), expected)
    upstream = draw(*out.shape, seed=50)
    torch.autograd.backward(out, upstream.to("npu"))
    for leaf, wanted in zip(on_device, gradients(case.definition, leaves, upstream), strict=True):
        assert leaf.grad is not None
        assert leaf.grad.device == leaf.device
        assert_near(leaf.grad.cpu(), wanted)


def test_a_bf16_gamma_gets_a_bf16_gradient() -> None:
    x = draw(4, 8, dtype=torch.bfloat16).to("npu").requires_grad_()
    gamma = draw(8, dtype=torch.bfloat16, seed=1).to("npu").requires_grad_()
    torch_npu.npu_rms_norm(x, gamma)[0].sum().backward()
    assert gamma.grad is not None
    assert x.grad is not None
    assert gamma.grad.dtype == x.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("version", [1, 2, 3])
def test_attention_dropout_repeats_its_mask_in_the_gradient(version: int) -> None:
    """With V the identity, the output is the dropped weights and dV shows their mask."""
    attend = getattr(torch_npu, VERSIONS[version])
    query = draw(1, 2, 6, 6).to("npu")
    value = torch.eye(6).expand(1, 2, 6, 6).contiguous().to("npu").requires_grad_()
    torch_npu.npu.manual_seed(3)
    out = attend(query, query, value, 2, "BNSD", keep_prob=0.5)[0]
    upstream = draw(1, 2, 6, 6, seed=1).to("npu")
    torch.autograd.backward(out, upstream)
    weights = out.detach()
    assert 0 < int((weights == 0).sum()) < weights.numel()
    assert value.grad is not None
    assert_near(value.grad.cpu(), (weights.transpose(2, 3) @ upstream).cpu().double())
    torch_npu.npu.manual_seed(3)
    again = attend(query, query, value, 2, "BNSD", keep_prob=0.5)[0]
    other = attend(query, query, value, 2, "BNSD", keep_prob=0.5)[0]
    assert torch.equal(again, out)
    assert not torch.equal(other, out)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_varlen_attention_on_the_device(version: int) -> None:
    query, key, value = (draw(8, 4, 6, seed=s) for s in range(3))
    leaves = [t.to("npu").requires_grad_() for t in (query, key, value)]
    attend = getattr(torch_npu, VERSIONS[version])
    ends = torch.tensor([3, 8]) if version == 3 else [3, 8]

    def definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cut = [t.transpose(0, 1) for t in (q, k, v)]
        parts = [
            dense.attend(*(t[:, a:b] for t in cut), kept=dense.kept_matrix(3, b - a, b - a))[0]
            for a, b in ((0, 3), (3, 8))
        ]
        return dense.pack(parts, "TND")

    out = attend(
        *leaves,
        4,
        "TND",
        atten_mask=MASK.to("npu"),
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        sparse_mode=3,
    )[0]
    upstream = draw(8, 4, 6, seed=9)
    torch.autograd.backward(out, upstream.to("npu"))
    expected = gradients(definition, (query, key, value), upstream)
    for leaf, wanted in zip(leaves, expected, strict=True):
        assert leaf.grad is not None
        assert_near(leaf.grad.cpu(), wanted)


def test_dropout_repeats_its_mask_in_the_gradient() -> None:
    x = torch.ones(300, device="npu", requires_grad=True)
    y, mask = torch_npu._npu_dropout(x, 0.25)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert mask.shape == (48,)


def test_external_dropout_mask_is_the_one_of_seed_and_offset() -> None:
    query = draw(1, 2, 4, 6).to("npu")
    mask = torch_npu._npu_dropout_gen_mask(
        torch.ones(1, device="npu"), [1, 2, 4, 4], p=1 - 0.9, seed=42, offset=8
    )
    arguments: dict[str, Any] = {"keep_prob": 0.9, "seed": 42, "offset": 8}
    inside = torch_npu.npu_fusion_attention(query, query, query, 2, "BNSD", **arguments)
    outside = torch_npu.npu_fusion_attention(
        query, query, query, 2, "BNSD", dropout_mask=mask, **arguments
    )
    assert torch.equal(inside[0], outside[0])
    assert inside[4:] == outside[4:] == (42, 8, 32)


def test_add_rms_norm_has_no_gradient() -> None:
    x = draw(4, 8).to("npu").requires_grad_()
    y = torch_npu.npu_add_rms_norm(x, x, torch.ones(8, device="npu"))[0]
    with pytest.raises(RuntimeError, match="npu_add_rms_norm is not implemented"):
        y.sum().backward()


def test_apply_rotary_pos_emb_changes_its_inputs() -> None:
    query, key = draw(2, 3, 4, 64).to("npu"), draw(2, 3, 2, 64).to("npu")
    before = query.clone()
    table = draw(2, 3, 1, 64).to("npu")
    out = torch_npu.npu_apply_rotary_pos_emb(query, key, table, table)
    assert torch.equal(out[0], query)
    assert torch.equal(out[1], key)
    assert not torch.equal(before, query)


def test_refusals_reach_the_caller_with_their_rule() -> None:
    query = draw(1, 2, 4, 6).to("npu")
    with pytest.raises(RuntimeError, match="needs its atten_mask"):
        torch_npu.npu_fusion_attention(query, query, query, 2, "BNSD", sparse_mode=2)
