"""What is checked of base/te inside a tree, in a process without an NPU."""

import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch


def describe_names() -> dict[str, Any]:
    """Which TransformerEngine the wrappers are made of, and what version checks say."""
    from megatron.core import utils
    from megatron.core.extensions import transformer_engine as wrappers

    return {
        "base": wrappers.TELinear.__mro__[1].__module__,
        "have": getattr(wrappers, "HAVE_TE", None),
        "version": str(utils.get_te_version()),
        "at least 1.9": utils.is_te_min_version("1.9.0"),
        "at least 2.1": utils.is_te_min_version("2.1.0"),
        "stand-in": "mindspeed.te" in sys.modules and wrappers.te.__name__ == "mindspeed.te",
        "importable": can_import("transformer_engine"),
    }


def can_import(name: str) -> bool:
    """Whether `import name` works, as everybody else in this process sees it."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def import_with_warnings() -> list[str]:
    """Import what every script imports, and say what was warned about TransformerEngine."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from megatron.core.models.gpt import GPTModel  # noqa: F401
    said = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    return [message for message in said if message.startswith("transformer_engine ")]


def find_refusals() -> dict[str, str]:
    """What each thing that mindspeed.te cannot do is answered with, at construction."""
    from mindspeed.te import pytorch
    from mindspeed.te.common.recipe import DelayedScaling

    one: dict[str, Any] = {"in_features": 8, "out_features": 8, "device": "cpu"}
    mask = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    query = torch.randn(4, 1, 2, 8)
    attention = pytorch.DotProductAttention(2, 8)
    attempts: dict[str, Callable[[], Any]] = {
        "fp8": build_fp8_wrapper,
        "overlap": lambda: pytorch.Linear(**one, ub_overlap_ag=True, ub_name="qkv"),
        "delayed gradients": lambda: pytorch.Linear(**one, delay_wgrad_compute=True),
        "symmetric": lambda: pytorch.LayerNormLinear(**one, symmetric_ar_type="two_shot"),
        "unknown": lambda: pytorch.Linear(**one, colour="red"),
        "recipe": DelayedScaling,
        "autocast": lambda: pytorch.fp8_autocast(enabled=True).__enter__(),
        "operations": pytorch.ops.Sequential,
        "offset": lambda: pytorch.DotProductAttention(2, 8, softmax_type="learnable"),
        "padding shape": lambda: attention(query, query, query, mask, attn_mask_type="padding"),
        "mask kind": lambda: pytorch.DotProductAttention(2, 8, attn_mask_type="diagonal"),
        "operator": attend_by_operator_without_npu,
        "other spec": lambda: attend_with_backend("local"),
    }
    return {name: describe_error(attempt) for name, attempt in attempts.items()}


def build_fp8_wrapper() -> Any:
    """Upstream's own wrapper with a config that asks for fp8."""
    from megatron.core.extensions.transformer_engine import TEColumnParallelLinear
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=2,
        use_cpu_initialization=True,
        fp8="hybrid",
    )
    return TEColumnParallelLinear(
        8,
        8,
        config=config,
        init_method=torch.nn.init.zeros_,
        gather_output=False,
        bias=False,
        skip_bias_add=False,
        is_expert=False,
    )


def attend_by_operator_without_npu() -> Any:
    """Ask for Ascend's operator by name, on a CPU."""
    return attend_with_backend("flash")


def attend_with_backend(name: str) -> Any:
    """Attend with an `attention_backend`, on a CPU."""
    from types import SimpleNamespace

    from mindspeed.te import pytorch

    module = pytorch.DotProductAttention(2, 8)
    module.config = SimpleNamespace(attention_backend=name)
    return module(*(torch.randn(4, 1, 2, 8) for _ in range(3)))


def describe_error(attempt: Callable[[], Any]) -> str:
    """The class and text of what it raises."""
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def find_forgotten_norms() -> list[str]:
    """Layer specs whose block would get the wrong final norm."""
    from functools import partial

    from megatron.core.extensions.transformer_engine import TENorm
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.transformer.spec_utils import ModuleSpec
    from mindspeed.core.te_specs import choose_block_norm

    te, local = (
        specs.get_gpt_layer_with_transformer_engine_spec(),
        specs.get_gpt_layer_local_spec(),
    )
    cases = {
        "te": (te, TENorm),
        "local": (local, int),
        "te in a partial": (partial(print, spec=te), TENorm),
        "te in a container": (ModuleSpec(module=int, params={"layers": [local, te]}), TENorm),
    }
    return [
        name for name, (spec, want) in cases.items() if choose_block_norm(spec, int) is not want
    ]


def describe_t5_masks(use_local: bool) -> Any:
    """The masks of T5's dataset, as lists; the kind of error where the release has none."""
    import torch

    try:
        from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset

        tokens, mask = torch.tensor([[5, 6, 0], [7, 0, 0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
        found = T5MaskedWordPieceDataset.config_attention_mask(
            tokens, tokens, mask < 0.5, mask < 0.5, use_local
        )
    except (ImportError, NameError, TypeError) as error:
        return type(error).__name__
    cross = found[2] if isinstance(found[2], tuple) else (found[2],)
    return [x if x is None else x.tolist() for x in (*found[:2], *cross)]
