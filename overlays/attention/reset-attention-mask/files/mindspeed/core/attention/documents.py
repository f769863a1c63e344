"""The documents of a batch as packed sequences.

Megatron's data set says where documents begin in two ways: position ids that restart
(`reset_position_ids`), and a mask tensor in which a token does not see the one before it
(`reset_attention_mask`). From either, `pack_documents` makes Megatron's own PackedSeqParams. The
rows of a batch become one sequence, so every row begins a document. Rotary embeddings count inside
each document, which gives the same scores, since they depend on distances only.

Dims: b rows of a batch, s tokens of a row.
"""

from collections.abc import Mapping
from typing import Any

import torch

_TOKENS = ("input_ids", "position_ids", "labels", "loss_mask")
_PASSED = ("runtime_gather_output", "extra_block_kwargs")


def forward_documents(model: Any, given: Mapping[str, Any]) -> torch.Tensor | None:
    """`GPTModel.forward` with the documents of the batch as packed sequences.

    Args:
        model: the GPTModel.
        given: the locals of its forward: its arguments, and names that are none.

    Returns:
        What forward returns for [b, s] tokens; None where upstream's own way is to be taken: for
        inference, and where a mask tensor separates the documents and packing cannot.

    Raises:
        ValueError: nothing separates the documents, or an argument cannot be packed.
    """
    arguments = {name: value for name, value in given.items() if value is not None}
    for name in ("self", "__class__", "forward_documents"):
        arguments.pop(name, None)
    if {"packed_seq_params", "inference_context", "inference_params"} & arguments.keys():
        return None
    mask = arguments.pop("attention_mask", None)
    obstacle = find_obstacle(model.config)
    if obstacle:
        if mask is None:
            raise ValueError(
                f"reset_attention_mask without an attention_mask needs packed sequences, and "
                f"{obstacle}; create the mask in the data loader"
            )
        return None
    unknown = sorted(arguments.keys() - {*_TOKENS, *_PASSED})
    if unknown:
        raise ValueError(f"reset_attention_mask packs documents, and cannot pack {unknown}")
    rows, length = arguments["input_ids"].shape
    if mask is not None:
        mask = mask.expand(rows, 1, length, length)
    packed = pack_documents(
        model.config, position_ids=arguments.get("position_ids"), attention_mask=mask
    )
    flat = {k: v.reshape(1, -1) if k in _TOKENS else v for k, v in arguments.items()}
    flat.setdefault("position_ids", None)
    out: torch.Tensor = model.forward(attention_mask=None, packed_seq_params=packed, **flat)
    return out.view(rows, length, *out.shape[2:])


def find_obstacle(config: Any) -> str | None:
    """Why documents cannot be packed with this config; None where they can."""
    backend = getattr(getattr(config, "attention_backend", None), "name", "auto")
    if not (
        config.use_flash_attn
        or getattr(config, "use_fusion_attn_v2", False)
        or backend in ("flash", "fused")
    ):
        return "attention is not flash attention"
    balancing = config.moe_router_load_balancing_type
    for holds, reason in (
        (config.pipeline_model_parallel_size > 1, "pipeline_model_parallel_size is over 1"),
        (config.context_parallel_size > 1, "context_parallel_size is over 1"),
        (config.multi_latent_attention, "multi_latent_attention is on"),
        (getattr(config, "mtp_num_layers", None), "mtp_num_layers is set"),
        ("seq_aux_loss" in balancing, "seq_aux_loss counts tokens of each row"),
        (getattr(config, "alibi_fusion_attn_type", None) == 0, "alibi_fusion_attn_type is 0"),
        (
            getattr(config, "fine_grained_activation_offloading", False),
            "fine_grained_activation_offloading is on",
        ),
    ):
        if holds:
            return reason
    return None


def pack_documents(
    config: Any,
    *,
    position_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
) -> Any:
    """PackedSeqParams of the rows of a batch, put one after another.

    Waits for the device once, for the number of documents and the longest.

    Args:
        config: says whether position ids restart, and the length of pieces.
        position_ids: [b, s], read where there is no mask.
        attention_mask: [b, 1, s, s] bool, true where masked.

    Raises:
        ValueError: neither says where documents begin.
    """
    from megatron.core.packed_seq_params import PackedSeqParams

    if attention_mask is not None:
        starts = attention_mask[:, 0].diagonal(offset=-1, dim1=-2, dim2=-1)
        starts = torch.nn.functional.pad(starts, (1, 0), value=True)
    elif config.reset_position_ids and position_ids is not None:
        starts = position_ids == 0
    else:
        raise ValueError(
            "reset_attention_mask finds no document: it needs an attention_mask, or position ids "
            "that restart (reset_position_ids)"
        )
    table = make_table(starts, piece=config.fix_sub_seq_length)
    longest = int(table.diff().max())
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=table,
        cu_seqlens_kv=table,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def make_table(starts: torch.Tensor, *, piece: int = -1) -> torch.Tensor:
    """Where documents begin, and the end of the last.

    Args:
        starts: [b, s] bool, true for the first token of a document; of a row always.
        piece: cut longer documents into pieces of this many tokens; below 1 not.

    Returns:
        [k + 1] int32 of k documents.
    """
    starts = starts.clone()
    starts[:, 0] = True
    flat = starts.reshape(-1)
    index = torch.arange(flat.numel(), device=flat.device)
    if piece > 0:
        begin = torch.where(flat, index, 0).cummax(0).values
        flat = (index - begin) % piece == 0
    return torch.nn.functional.pad(index[flat], (0, 1), value=flat.numel()).to(torch.int32)
