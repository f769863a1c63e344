"""A GPT on batches of documents: upstream with a mask tensor, ours with packed sequences."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from features.attention.attention_device_checks import DONE
from features.parts import Named, find_grad, make_config, make_gpt

# Where documents end in the two rows of a batch of 12 tokens; the data set puts a token there.
ENDS = ((4, 5), (8,))
LENGTH = 12


def make_batch(piece: int = -1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, position ids that restart, and the mask tensor, as the data set makes them."""
    tokens = torch.randint(0, 64, (len(ENDS), LENGTH), device="cuda")
    positions = torch.arange(LENGTH, device="cuda").repeat(len(ENDS), 1)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)
    mask = mask.repeat(len(ENDS), 1, 1, 1)
    for row, ends in enumerate(ENDS):
        starts = [0, *(end + 1 for end in ends), LENGTH]
        for begin, stop in pairwise(starts):
            positions[row, begin:stop] -= begin
            cuts = range(begin + piece, stop, piece) if piece > 0 else ()
            for cut in (begin, *cuts):
                mask[row, 0, cut:, :cut] = True
    return tokens, positions, mask


def run_documents(
    dtype: torch.dtype,
    *,
    packed: bool = False,
    restart: bool = True,
    keep_mask: bool = False,
    kind: str = "rope",
    piece: int = -1,
    labelled: bool = True,
    **changes: Any,
) -> Named:
    """One step: losses or logits, and every gradient.

    Args:
        dtype: of parameters.
        packed: by packed sequences; else upstream, with the mask tensor.
        restart: position ids restart.
        keep_mask: hand over the mask tensor too when packed.
        kind: of position embedding.
        piece: for `fix_sub_seq_length`.
        labelled: with labels.
        changes: of the config.
    """
    if packed:
        changes |= {
            "use_flash_attn": True,
            "reset_attention_mask": True,
            "reset_position_ids": restart,
            "fix_sub_seq_length": piece,
        }
    config = make_config(dtype, num_query_groups=2, **changes)
    model = make_gpt(config, position_embedding_type=kind)
    tokens, positions, mask = make_batch(piece)
    if not restart:
        positions = torch.arange(LENGTH, device="cuda").expand(len(ENDS), LENGTH)
    given = mask if keep_mask or not packed else None
    labels = tokens.roll(-1, 1) if labelled else None
    out = model(tokens, positions, given, labels=labels)
    out.float().square().mean().backward()
    return {"out": out} | {f"grad {n}": find_grad(p) for n, p in model.named_parameters()}


def check_no_mask_is_read() -> Named:
    """The operator gets the lengths of documents, and one table serves all layers."""
    import torch_npu

    operator, calls = torch_npu.npu_fusion_attention, []

    def record(*arguments: Any, **keywords: Any) -> Any:
        calls.append(keywords)
        return operator(*arguments, **keywords)

    torch_npu.npu_fusion_attention = record
    try:
        run_documents(torch.float32, packed=True, restart=False, keep_mask=True)
    finally:
        torch_npu.npu_fusion_attention = operator
    assert [call["actual_seq_qlen"] for call in calls] == [[5, 6, 12, 21, 24]] * 2
    assert all(call["atten_mask"].shape == (2048, 2048) for call in calls)
    return DONE


def check_document_refusals() -> Named:
    """What says nothing about documents, or cannot be packed, is an error."""
    options = {"reset_attention_mask": True, "use_flash_attn": True}
    tokens, positions, mask = make_batch()
    plain = make_gpt(make_config(torch.float32, **options))
    with pytest.raises(ValueError, match="finds no document"):
        plain(tokens, positions, None)
    hidden = torch.zeros(LENGTH, len(ENDS), 32, device="cuda")
    with pytest.raises(ValueError, match=r"cannot pack \['decoder_input'\]"):
        plain(tokens, positions, mask, decoder_input=hidden)
    for changes, reason in (
        ({"use_flash_attn": False}, "attention is not flash attention"),
        (
            {"num_moe_experts": 2, "moe_router_load_balancing_type": "seq_aux_loss"},
            "seq_aux_loss counts tokens of each row",
        ),
    ):
        config = make_config(torch.float32, **(options | changes))
        dense = make_gpt(make_config(torch.float32, **options))
        dense.config = config
        with pytest.raises(ValueError, match=reason):
            dense(tokens, positions, None)
    unfused = make_gpt(make_config(torch.float32, reset_attention_mask=True))
    assert unfused(tokens, positions, mask).shape[:2] == tokens.shape
    return DONE
