"""Where Megatron asks for TransformerEngine, and what was decided there: the table of docs/te.md.

    python tests/features/base/te_sites.py RELEASE=TREE ...

writes it anew. A test finds the places in the pristine trees and compares.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "te.md"
BEGIN, END = "<!-- sites -->\n", "<!-- end of sites -->\n"

_SITE = re.compile(
    r"\bHAVE_TE\w*|is_te_min_version\(|get_te_version\(|^\s*(?:import|from) transformer_engine\b"
)

NAMED = "yes: names the wrappers of layer specs"
ABSENT = "no, as without TransformerEngine"

# By file, below megatron/: the answer to "is there a TransformerEngine?", and why.
DECISIONS: dict[str, tuple[str, str]] = {
    "core/datasets/t5_dataset.py": ("2.0.0", "masks of the TE spec (not `use_local`)"),
    "core/dist_checkpointing/exchange_utils.py": (ABSENT, "fp8 tensors"),
    "core/dist_checkpointing/strategies/tensorstore.py": ("-", "another package's name"),
    "core/dist_checkpointing/strategies/torch.py": (ABSENT, "fp8 tensors"),
    "core/distributed/custom_fsdp/param_and_grad_buffer.py": (
        ABSENT,
        "fp8; meta-device init raises as before (NameError, was ModuleNotFoundError)",
    ),
    "core/distributed/fsdp/mcore_fsdp_adapter.py": ("2.0.0", "asks for 2.10 and raises"),
    "core/distributed/fsdp/src/megatron_fsdp/mixed_precision.py": (ABSENT, "fp8"),
    "core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py": (ABSENT, "fp8"),
    "core/distributed/fsdp/src/megatron_fsdp/utils.py": (ABSENT, "has version functions itself"),
    "core/extensions/transformer_engine.py": (
        "yes",
        "the wrappers themselves; kernels that it imports apart from them stay None",
    ),
    "core/extensions/transformer_engine_spec_provider.py": ("2.0.0", "q/k norms, grouped experts"),
    "core/fp4_utils.py": (ABSENT, "fp4"),
    "core/fp8_utils.py": (ABSENT, "fp8"),
    "core/inference/quantization/utils.py": (ABSENT, "fp8 tensors"),
    "core/inference/text_generation_controllers/text_generation_controller.py": (ABSENT, "fp8"),
    "core/models/T5/t5_spec.py": (NAMED, ""),
    "core/models/audio/nemo_transformer_encoder.py": (ABSENT, "`auto` stays torch's attention"),
    "core/models/backends.py": ("2.0.0", "norms of q and k of the inference spec"),
    "core/models/bert/bert_layer_specs.py": (NAMED, ""),
    "core/models/bert/bert_model.py": ("2.0.0", "padding masks of the TE spec, as from 1.10"),
    "core/models/common/embeddings/rope_utils.py": ("2.0.0", "within a kernel that stays absent"),
    "core/models/common/language_module/language_module.py": ("2.0.0", "cross entropy, still None"),
    "core/models/gpt/experimental_attention_variant_module_specs.py": (NAMED, ""),
    "core/models/gpt/gpt_layer_specs.py": (NAMED, "`use_te_op_fuser` is refused when built"),
    "core/models/gpt/heterogeneous/heterogeneous_layer_specs.py": (NAMED, ""),
    "core/models/gpt/moe_module_specs.py": (NAMED, "grouped experts"),
    "core/models/mimo/partition/utils.py": (ABSENT, "a kernel for context parallelism"),
    "core/models/multimodal/llava_model.py": (NAMED, "`tex`, a kernel, stays absent"),
    "core/models/retro/config.py": ("2.0.0", "sets environment variables of TransformerEngine"),
    "core/models/retro/decoder_spec.py": (NAMED, ""),
    "core/models/retro/encoder_spec.py": (NAMED, ""),
    "core/models/vision/clip_vit_model.py": (ABSENT, "the default norm stays torch's"),
    "core/optimizer/__init__.py": (ABSENT, "optimizers stay apex's or torch's"),
    "core/optimizer/clip_grads.py": (ABSENT, "multi-tensor kernels"),
    "core/optimizer/cpu_offloading/hybrid_optimizer.py": (ABSENT, "optimizers"),
    "core/optimizer/distrib_optimizer.py": (ABSENT, "optimizers"),
    "core/optimizer/optimizer.py": (ABSENT, "multi-tensor kernels"),
    "core/optimizer/optimizer_config.py": (ABSENT, "2.1 decides on remainders: below, as before"),
    "core/pipeline_parallel/utils.py": (ABSENT, "symmetric memory"),
    "core/post_training/modelopt/layers.py": (NAMED, "norms and linears of ModelOpt's specs"),
    "core/recompute.py": ("yes", "`te_checkpoint`, which only fp8 and fp4 use"),
    "core/resharding/transforms.py": (ABSENT, "fp8 tensors"),
    "core/ssm/mamba_context_parallel.py": (ABSENT, "a kernel for context parallelism"),
    "core/tensor_parallel/generalized_tensor_parallelism.py": (ABSENT, "fp8 weights"),
    "core/tensor_parallel/gtp_api.py": (ABSENT, "fp8 weights"),
    "core/tensor_parallel/inference_layers.py": (ABSENT, "kernels; the inference spec asserts"),
    "core/tensor_parallel/layers.py": (ABSENT, "local layers keep their own gradient buffers"),
    "core/tensor_parallel/random.py": (ABSENT, "random states and recomputation stay Megatron's"),
    "core/transformer/attention.py": (
        "until 0.16.1 no, then yes",
        "only fp8 asks; names that stay None are not used",
    ),
    "core/transformer/cuda_graphs.py": (ABSENT, "CUDA graphs"),
    "core/transformer/custom_layers/batch_invariant_kernels.py": (ABSENT, "Triton kernels"),
    "core/transformer/experimental_attention_variant/absorbed_mla.py": ("yes", "names, and fp8"),
    "core/transformer/heterogeneous/linear_replacements.py": (NAMED, ""),
    "core/transformer/mlp.py": (ABSENT, "CPU offload, which needs `get_cpu_offload_context`"),
    "core/transformer/moe/experts.py": (
        "at 0.12.1 and from 0.17.1 yes",
        "fp8 padding stays None; linears refuse fp8 first",
    ),
    "core/transformer/moe/fused_a2a.py": (ABSENT, "a kernel for expert parallelism"),
    "core/transformer/moe/moe_layer.py": ("from 0.16.1 yes", "latent projections; `te_checkpoint`"),
    "core/transformer/moe/moe_utils.py": (
        "yes",
        "kernels are None, refused as before; routing needs one's name (0.14.0 to 0.16.1)",
    ),
    "core/transformer/moe/shared_experts.py": ("yes", "recomputation with fp8"),
    "core/transformer/multi_latent_attention.py": ("yes", "names, and fp8"),
    "core/transformer/multi_token_prediction.py": (NAMED, ""),
    "core/transformer/transformer_block.py": (ABSENT, "the layer spec chooses the final norm"),
    "core/transformer/transformer_config.py": ("2.0.0", "fp8, and what asks for more and raises"),
    "core/transformer/transformer_layer.py": (ABSENT, "CUDA graphs"),
    "core/utils.py": ("2.0.0", "the version functions; `tex`, a kernel, stays absent"),
    "training/arguments.py": ("2.0.0", "fp8, and what asks for more and raises"),
    "training/initialize.py": (ABSENT, "userbuffers, and raises"),
    "training/utils.py": (ABSENT, "multi-tensor kernels"),
    "training/utils/common_utils.py": (ABSENT, "multi-tensor kernels"),
}  # fmt: skip


def find_sites(tree: Path) -> dict[str, int]:
    """How many lines of each file ask, by its path below megatron/."""
    found = {}
    for path in sorted(tree.joinpath("megatron").rglob("*.py")):
        count = sum(bool(_SITE.search(line)) for line in path.read_text("utf-8").splitlines())
        if count:
            found[path.relative_to(tree / "megatron").as_posix()] = count
    return found


def make_table(sites: Mapping[str, Mapping[str, int]]) -> str:
    """The table, from the places by release (without `core_v`)."""
    rows = [
        "| File below `megatron/` | " + " | ".join(sites) + " | Is there one? | Why |",
        "|---" * (len(sites) + 3) + "|",
    ]
    for name in sorted({name for found in sites.values() for name in found}):
        counts = [str(found.get(name, "")) for found in sites.values()]
        rows.append(" | ".join([f"| `{name}`", *counts, *DECISIONS[name]]).rstrip() + " |")
    return "\n".join(rows) + "\n"


def replace_table(document: str, table: str) -> str:
    """The document with another table."""
    before, _, rest = document.partition(BEGIN)
    return before + BEGIN + table + END + rest.partition(END)[2]


if __name__ == "__main__":
    trees = dict(argument.split("=", 1) for argument in sys.argv[1:])
    table = make_table({tag: find_sites(Path(tree)) for tag, tree in trees.items()})
    DOCUMENT.write_text(replace_table(DOCUMENT.read_text("utf-8"), table), "utf-8")
