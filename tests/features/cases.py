"""What is compared of each feature, on every release."""

import torch

from features.compared import Feature
from harness.trees import ALL_RELEASES

FLASH_ATTENTION = Feature(
    overlay="attention/flash-attention",
    scenarios="features.attention.attention_scenarios",
    switch="flash",
    cases={
        "causal": ("run_core", {}),
        "causal, one token": ("run_core", {"queries": 1, "keys": 1}),
        "causal, decoding": ("run_core", {"queries": 1, "keys": 9}),
        "causal, triangle": ("run_core", {"mask": "triangle"}),
        "causal, documents": ("run_core", {"mask": "documents", "queries": 12, "keys": 12}),
        "causal, grouped queries": ("run_core", {"groups": 2}),
        "causal, one key head": ("run_core", {"groups": 1}),
        "causal, own scale": ("run_core", {"scale": 0.3}),
        "causal, layer scaling": ("run_core", {"apply_query_key_layer_scaling": True, "layer": 3}),
        "causal, long": ("run_long", {}),
        "padding, row": ("run_core", {"kind": "padding", "mask": "row padding"}),
        "padding, full": ("run_core", {"kind": "padding", "mask": "full padding", "groups": 2}),
        "padding, no mask": ("run_core", {"kind": "padding"}),
        "no mask": ("run_core", {"kind": "no_mask"}),
        "arbitrary": ("run_core", {"kind": "arbitrary", "mask": "shared"}),
        "cross": ("run_core", {"kind": "padding", "mask": "full padding", "queries": 7}),
        "cross, no mask": ("run_core", {"kind": "no_mask", "queries": 14}),
        "packed": ("run_packed", {"padded": False}),
        "packed, padded": ("run_packed", {"padded": True, "tail": 2}),
        "packed, not causal": ("run_packed", {"padded": True, "kind": "padding"}),
        "packed, cross": ("run_packed", {"padded": True, "kind": "no_mask", "keys_differ": True}),
        "gpt": ("run_gpt", {}),
        "gpt, no mask": ("run_gpt", {"with_mask": False}),
    },
    # Sliding windows and softmax offsets in DotProductAttention.
    later=ALL_RELEASES[ALL_RELEASES.index("core_v0.15.3") :],
    later_cases={
        "window": ("run_core", {"window_size": (3, 0)}),
        "window, mask given": ("run_core", {"window_size": (2, 1), "mask": "triangle"}),
        "window, decoding": ("run_core", {"window_size": (3, 0), "queries": 1, "keys": 9}),
        "window, skipped": (
            "run_core",
            {"window_size": (3, 0), "window_attn_skip_freq": 2, "layer": 2},
        ),
        "off-by-one": ("run_core", {"softmax_type": "off-by-one"}),
        "learnable offset": ("run_core", {"softmax_type": "learnable", "groups": 2}),
        "packed, learnable offset": ("run_packed", {"padded": True, "softmax_type": "learnable"}),
    },
)

FUSION_ATTENTION_V2 = Feature(
    overlay="attention/fusion-attention-v2",
    scenarios="features.attention.second_version_scenarios",
    switch="second",
    cases={
        name: FLASH_ATTENTION.cases[name]
        for name in (
            "causal",
            "causal, documents",
            "causal, decoding",
            "causal, grouped queries",
            "causal, layer scaling",
            "causal, long",
            "padding, full",
            "cross",
            "packed, padded",
            "packed, cross",
            "gpt",
        )
    },
    later=FLASH_ATTENTION.later,
    later_cases={
        name: FLASH_ATTENTION.later_cases[name]
        for name in ("window", "learnable offset", "packed, learnable offset")
    },
)

ALIBI = Feature(
    overlay="attention/alibi",
    scenarios="features.attention.alibi_scenarios",
    switch="alibi",
    cases={
        "inside": ("run_core", {}),
        "inside, opposite": ("run_core", {"alibi_diagonal_opposite": True}),
        "inside, six heads": ("run_core", {"heads": 6}),
        "inside, not causal": ("run_core", {"kind": "no_mask"}),
        "inside, documents": ("run_core", {"mask": "documents", "tokens": 12}),
        "inside, packed": ("run_packed", {}),
        "tensor": ("run_core", {"way": 0}),
        "tensor, opposite": ("run_core", {"way": 0, "alibi_diagonal_opposite": True}),
        "tensor, six heads": ("run_core", {"way": 0, "heads": 6}),
        "tensor, not causal": ("run_core", {"way": 0, "kind": "no_mask"}),
        "tensor, signed": (
            "run_core",
            {"way": 0, "kind": "no_mask", "square_alibi_mask": True},
        ),
        "tensor, signed, opposite": (
            "run_core",
            {
                "way": 0,
                "kind": "no_mask",
                "square_alibi_mask": True,
                "alibi_diagonal_opposite": True,
            },
        ),
        "tensor, causal by itself": (
            "run_core",
            {"way": 0, "kind": "no_mask", "fill_neg_inf": True},
        ),
        "tensor, decoding": ("run_core", {"way": 0, "tokens": 1, "keys": 9}),
        "tensor, last rows": ("run_core", {"way": 0, "tokens": 1100}),
        "gpt, inside": ("run_gpt", {}),
        "gpt, tensor": ("run_gpt", {"way": 0}),
        "gpt, mask given": ("run_gpt", {"with_mask": True}),
    },
)

RESET_ATTENTION_MASK = Feature(
    overlay="attention/reset-attention-mask",
    scenarios="features.attention.documents_scenarios",
    switch="packed",
    cases={
        "gpt, positions restart": ("run_documents", {}),
        "gpt, mask given": ("run_documents", {"restart": False, "keep_mask": True}),
        "gpt, embedded positions": ("run_documents", {"kind": "learned_absolute"}),
        "gpt, pieces": ("run_documents", {"piece": 3}),
        "gpt, logits": ("run_documents", {"labelled": False}),
    },
)

FUSED_RMSNORM = Feature(
    overlay="fusions/fused-rmsnorm",
    scenarios="features.fusions.rmsnorm_scenarios",
    switch="fused",
    cases={
        "norm": ("run_norm", {}),
        "wide norm": ("run_norm", {"shape": (1, 1, 513)}),
        "norm of heads": ("run_norm", {"shape": (5, 2, 3, 8)}),
        "norm of a view": ("run_norm_of_view", {}),
        "gpt": ("run_gpt", {}),
    },
)

FUSED_ROPE = Feature(
    overlay="fusions/fused-rope",
    scenarios="features.fusions.rope_scenarios",
    switch="fused",
    cases={
        "half": ("run_batch", {}),
        "interleaved": ("run_batch", {"rotary_interleaved": True}),
        "partial": ("run_batch", {"width": 4}),
        "partial, interleaved": ("run_batch", {"width": 6, "rotary_interleaved": True}),
        "mscale": ("run_batch", {"mscale": 1.3}),
        "positions by sequence": ("run_batch", {"batch": 2}),
        "packed": ("run_packed", {}),
        "packed, exact": ("run_packed", {"exact": True}),
        "packed, interleaved": ("run_packed", {"rotary_interleaved": True}),
        "multi-latent": ("run_multi_latent", {}),
        "gpt": ("run_gpt", {}),
        "gpt, partial": ("run_gpt", {"percent": 0.5}),
        "gpt, interleaved": ("run_gpt", {"rotary_interleaved": True}),
        "multi-latent module, YaRN": ("run_multi_latent_module", {"rope_type": "yarn"}),
        "multi-latent module": ("run_multi_latent_module", {"rope_type": "rope"}),
    },
)

MATMUL_ADD = Feature(
    overlay="fusions/matmul-add",
    scenarios="features.fusions.matmul_add_scenarios",
    switch="fused",
    cases={
        "gpt": ("run_gpt", {}),
        "gpt, biases": ("run_gpt", {"add_bias_linear": True}),
    },
)

FUSED_SOFTMAX = Feature(
    overlay="fusions/fused-softmax",
    scenarios="features.fusions.softmax_scenarios",
    switch="fused",
    cases={
        "causal": ("run_softmax", {"queries": 64, "keys": 64}),
        "causal, triangle": ("run_softmax", {"mask": "triangle", "queries": 32, "keys": 32}),
        "causal, documents": ("run_softmax", {"mask": "documents", "queries": 64, "keys": 64}),
        "causal, layer scaling": (
            "run_softmax",
            {"apply_query_key_layer_scaling": True, "layer": 3, "queries": 32, "keys": 32},
        ),
        "causal, odd": ("run_softmax", {}),
        "causal, upstream's size": ("run_softmax", {"queries": 36, "keys": 36}),
        "padding, row": (
            "run_softmax",
            {"kind": "padding", "mask": "row padding", "queries": 32, "keys": 64},
        ),
        "padding, full": (
            "run_softmax",
            {"kind": "padding", "mask": "full padding", "queries": 96, "keys": 32},
        ),
        "no mask": ("run_softmax", {"kind": "no_mask", "queries": 32, "keys": 64}),
    },
    later=ALL_RELEASES[ALL_RELEASES.index("core_v0.15.3") :],
    later_cases={
        "window": ("run_softmax", {"window_size": (3, 0), "queries": 64, "keys": 64}),
        "learnable offset": (
            "run_softmax",
            {"softmax_type": "learnable", "queries": 64, "keys": 64},
        ),
    },
)

AFFINITY_CROSS_ENTROPY = Feature(
    overlay="fusions/affinity-cross-entropy",
    scenarios="features.fusions.masking_scenarios",
    switch="fused",
    cases={
        "gpt": ("run_gpt", {}),
        "gpt, fused loss": ("run_gpt", {"cross_entropy_loss_fusion": True}),
        "smoothed": ("run_loss", {"smoothing": 0.1}),
        "infinite": ("run_loss", {"infinite": True}),
    },
)

VOCAB_PARALLEL_INDEX_PUT = Feature(
    overlay="fusions/vocab-parallel-index-put",
    scenarios="features.fusions.masking_scenarios",
    switch="fused",
    cases={
        "embedding": ("run_embedding", {}),
        "deterministic": ("run_embedding", {"deterministic_mode": True}),
    },
)

TOKEN_PERMUTE = Feature(
    overlay="moe/token-permute",
    scenarios="features.moe.permute_scenarios",
    switch="fused",
    cases={
        "round": ("run_round", {}),
        "round, fp32 probabilities": ("run_round", {"probs_dtype": torch.float32}),
        "round, capacity": ("run_round", {"pad": True}),
        "weighed": ("run_round", {"weigh": True}),
        "gpt": ("run_gpt", {}),
        "gpt, capacity": (
            "run_gpt",
            {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
        ),
        "gpt, shared expert": ("run_gpt", {"moe_shared_expert_intermediate_size": 24}),
    },
)

SWEPT = (
    FLASH_ATTENTION,
    FUSION_ATTENTION_V2,
    ALIBI,
    RESET_ATTENTION_MASK,
    FUSED_RMSNORM,
    FUSED_ROPE,
    MATMUL_ADD,
    FUSED_SOFTMAX,
    AFFINITY_CROSS_ENTROPY,
    VOCAB_PARALLEL_INDEX_PUT,
    TOKEN_PERMUTE,
)
OVERLAYS = tuple(feature.overlay for feature in SWEPT)
"""All of them: tests share trees that have these, since making one costs more than most tests."""
