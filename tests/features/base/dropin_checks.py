"""What a framework written for MindSpeed does, in a patched tree."""

import argparse
import sys
from typing import Any


def call_repatch(options: dict[str, Any], as_namespace: bool) -> str:
    """The message of the error, or an empty string."""
    from mindspeed.megatron_adaptor import repatch

    try:
        repatch(argparse.Namespace(**options) if as_namespace else options)
    except ValueError as error:
        return str(error)
    return ""


def read_args(flags: list[str], defaults: bool) -> dict[str, Any]:
    """`get_mindspeed_args` with a command line that has other programs' flags too."""
    from mindspeed.args_utils import get_full_args, get_mindspeed_args

    sys.argv = ["train.py", "--not-ours", "3", *flags]
    assert vars(get_full_args()) == vars(get_mindspeed_args())
    found: dict[str, Any] = vars(get_mindspeed_args(get_defaults=defaults))
    return found


def rotate() -> dict[str, Any]:
    """The rotary operator in both modes with gradients, and the formula."""
    import torch
    from mindspeed.ops.npu_rotary_position_embedding import npu_rotary_position_embedding

    torch.manual_seed(0)
    x = torch.randn(3, 2, 4, 8, device="cuda")
    cos, sin = (torch.randn(3, 1, 1, 8, device="cuda") for _ in range(2))
    found: dict[str, Any] = {}
    for mode in (0, 1):
        leaf = x.clone().requires_grad_()
        if mode == 0:
            turned = torch.cat([-x[..., 4:], x[..., :4]], -1)
        else:
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        out = npu_rotary_position_embedding(leaf, cos, sin, mode)
        out.sum().backward()
        assert leaf.grad is not None
        found |= {f"out {mode}": out, f"want {mode}": x * cos + turned * sin}
        found[f"grad {mode}"] = leaf.grad
    return found


def merge_attention() -> dict[str, Any]:
    """Attention over all keys, and merged from both halves of them by the operator."""
    import torch
    from mindspeed.ops.npu_ring_attention_update import npu_ring_attention_update

    torch.manual_seed(0)
    s, b, n, d, keys = 6, 2, 2, 16, 10
    q = torch.randn(b, n, s, d)
    k, v = torch.randn(b, n, keys, d), torch.randn(b, n, keys, d)

    def attend(part: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores = q @ k[:, :, part].transpose(-1, -2)
        top = scores.amax(-1, keepdim=True)
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True)
        out = (weights @ v[:, :, part]) / total
        shaped = out.permute(2, 0, 1, 3).reshape(s, b, n * d)
        return shaped.cuda(), top.expand(-1, -1, -1, 8).cuda(), total.expand(-1, -1, -1, 8).cuda()

    halves = [tuple(t.contiguous() for t in attend(part)) for part in (slice(0, 4), slice(4, None))]
    out, top, total = npu_ring_attention_update(*halves[0], *halves[1])
    want_out, want_top, want_total = attend(slice(None))
    return {
        "out": out,
        "want out": want_out,
        "top": top,
        "want top": want_top,
        "total": total,
        "want total": want_total,
    }
