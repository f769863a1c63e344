"""What is checked of use_fused_swiglu inside a patched tree, without an NPU."""

import copy
import dataclasses
import pickle
import sys
from typing import Any

import torch.nn.functional as F

SMALL: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
SWIGLU: dict[str, Any] = {"activation_func": F.silu, "gated_linear_unit": True}


def find_unrefused_configs() -> list[str]:
    """Configs that should be a ValueError naming option and value, and are not."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    bad: list[dict[str, Any]] = [
        {},
        {"activation_func": F.silu},
        {"activation_func": F.gelu, "gated_linear_unit": True},
        {**SWIGLU, "activation_func_clamp_value": 7.0},
        {**SWIGLU, "glu_linear_offset": 1.0},
        {**SWIGLU, "use_te_activation_func": True},
        {**SWIGLU, "use_transformer_engine_op_fuser": True},
    ]
    problems = []
    for changes in bad:
        if not changes.keys() <= fields:
            continue
        culprit = list(changes)[-1] if len(changes) > 2 else "activation_func"
        try:
            TransformerConfig(**SMALL, **changes, use_fused_swiglu=True)
        except ValueError as error:
            if "--use-fused-swiglu" in str(error) and culprit in str(error):
                continue
            # Upstream's own rule may speak first.
            if culprit == "glu_linear_offset" and "glu_linear_offset" in str(error):
                continue
            problems.append(f"{changes}: {error}")
        else:
            problems.append(f"{changes}: accepted")
    return problems


def build_mlp_without_npu() -> str:
    """The config is accepted; what building the MLP says."""
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    assert "torch_npu" not in sys.modules
    config = TransformerConfig(**SMALL, **SWIGLU, use_fused_swiglu=True)
    config.__post_init__()
    assert "torch_npu" not in sys.modules
    try:
        MLP(config, MLPSubmodules(ColumnParallelLinear, RowParallelLinear))
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "built"


def find_broken_config_habits() -> list[str]:
    """What frameworks do with configs and no longer works."""
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    class Subclass(TransformerConfig):  # type: ignore[misc]
        pass

    problems = []
    for kind in (TransformerConfig, MLATransformerConfig, Subclass):
        config = kind(**SMALL, **SWIGLU, use_fused_swiglu=True)
        field = {f.name: f for f in dataclasses.fields(kind)}["use_fused_swiglu"]
        checks = {
            "keyword-only": field.kw_only,
            "default": kind(**SMALL).use_fused_swiglu is False,
            "replace": dataclasses.replace(config, hidden_size=32).use_fused_swiglu,
            "asdict": dataclasses.asdict(config)["use_fused_swiglu"],
            "deepcopy": copy.deepcopy(config).use_fused_swiglu,
        }
        if kind is not Subclass:
            pickled = pickle.loads(pickle.dumps(kind(**SMALL, use_fused_swiglu=False)))
            checks["pickle"] = pickled.use_fused_swiglu is False
        problems += [f"{kind.__name__}: {name}" for name, good in checks.items() if not good]
    return problems


def parse_flags(flags: list[str]) -> bool:
    """What Megatron's own parser makes of the flag; a second definition would raise."""
    import argparse

    from megatron.training import arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    args = parser.parse_args([*flags, "--num-layers", "2", "--hidden-size", "16"])
    return bool(args.use_fused_swiglu)
