"""A small tree shaped like Megatron, edits to it, and the gate run on the result."""

from collections.abc import Mapping
from textwrap import dedent

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.gate import check_gate

OVERLAY = "fusions/fused-swiglu"

_TREE = {
    "megatron/core/__init__.py": """
        from megatron.core import parallel_state
        from .utils import divide

        mpu = parallel_state
        __all__ = ["parallel_state", "transformer", "divide"]
    """,
    "megatron/core/utils.py": '''
        import torch
        from functools import lru_cache


        def divide(numerator, denominator):
            """Whole division."""
            return numerator // denominator


        @lru_cache
        def get_te_version(verbose=False):
            return unknown_upstream_name


        def log_once(logger, message, *, level=20):
            logger.log(level, message)
    ''',
    "megatron/core/parallel_state.py": """
        _GROUP = None


        def get_tensor_model_parallel_group(check_initialized=True):
            return _GROUP


        def initialize_model_parallel(tensor=1, pipeline=1, *, order="tp-cp-dp"):
            global _GROUP
            _GROUP = (tensor, pipeline, order)
    """,
    "megatron/core/jit.py": """
        import torch

        jit_fuser = torch.jit.script
    """,
    "megatron/core/transformer/__init__.py": "",
    "megatron/core/transformer/module.py": """
        import torch


        class MegatronModule(torch.nn.Module):
            def __init__(self, config):
                super().__init__()
                self.config = config

            def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
                return {}
    """,
    "megatron/core/transformer/config.py": """
        from dataclasses import dataclass, field
        from typing import ClassVar, Optional


        @dataclass
        class ModelConfig:
            hidden_size: int
            num_layers: int = 1
            names: ClassVar[dict] = {}


        @dataclass
        class TransformerConfig(ModelConfig):
            ffn_hidden_size: Optional[int] = None
            layers: list = field(default_factory=list)
    """,
    "megatron/core/transformer/mlp.py": """
        from typing import Optional, overload

        import torch

        from megatron.core import parallel_state, utils
        from megatron.core.jit import jit_fuser
        from megatron.core.transformer.config import TransformerConfig
        from megatron.core.transformer.module import MegatronModule
        from ..utils import divide, log_once

        try:
            from transformer_engine import Linear

            HAVE_TE = True
        except ImportError:
            HAVE_TE = False

        try:
            from megatron.core.extensions.absent import fast_path
        except ImportError:
            fast_path = None


        class MLP(MegatronModule):
            def __init__(self, config: TransformerConfig, is_expert: bool = False, tp_group=None):
                super().__init__(config)
                self.size = divide(config.ffn_hidden_size, 2)
                self.group = parallel_state.get_tensor_model_parallel_group()

            @property
            def width(self):
                return self._width

            @width.setter
            def width(self, value):
                self._width = value

            def forward(self, hidden_states, per_token_scale=None):
                scaled = self._scale(hidden_states, per_token_scale)
                return self._activate(scaled)

            def _scale(self, x, scale, eps=1e-5):
                return x * scale + eps

            def _activate(self, x):
                if fast_path is not None:
                    return fast_path(x)
                return swiglu(x, 1.0)


        class ExpertMLP(MLP):
            def __init__(self, config, num_experts):
                super().__init__(config, True)
                self.num_experts = num_experts

            def forward(self, hidden_states):
                return super().forward(hidden_states)


        class Swiglu(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, limit):
                return x

            @staticmethod
            def backward(ctx, grad):
                return grad, None


        def swiglu(x, limit):
            return Swiglu.apply(x, limit)
    """,
    "megatron/core/models/gpt/specs.py": """
        from megatron.core.transformer.mlp import MLP, ExpertMLP
        from megatron.core.utils import *


        def get_local_spec(num_experts=None, qk_layernorm=False):
            mlp = get_mlp_spec(num_experts=num_experts)
            return (mlp, qk_layernorm)


        def get_te_spec(num_experts=None, qk_layernorm=False):
            mlp = get_mlp_spec(num_experts=num_experts)
            return (mlp, qk_layernorm)


        def get_mlp_spec(num_experts=None):
            if divide(num_experts, 1) > 0:
                return ExpertMLP
            return MLP
    """,
    "megatron/core/models/gpt/model.py": """
        from megatron.core.models.gpt.specs import get_local_spec, get_te_spec
        from megatron.core.transformer.mlp import MLP
        from megatron.core import mpu


        def build(config, use_te):
            if use_te:
                return get_te_spec(8, True)
            mpu.get_tensor_model_parallel_group()
            return get_local_spec(8, qk_layernorm=True)


        class GatedMLP(MLP):
            def forward(self, hidden_states):
                return self._scale(hidden_states, 2.0, 1e-6)
    """,
    "megatron/core/datasets/helpers_cpp.cpython-310-x86_64-linux-gnu.so": "ELF",
    "megatron/core/datasets/indexed.py": """
        from megatron.core.datasets.helpers_cpp import build_sample_idx
        from megatron.training import get_args


        def build():
            return build_sample_idx(get_args())
    """,
}
TREE = {path: dedent(text).lstrip("\n").encode() for path, text in _TREE.items()}

MLP = "megatron/core/transformer/mlp.py"
SPECS = "megatron/core/models/gpt/specs.py"
MODEL = "megatron/core/models/gpt/model.py"
UTILS = "megatron/core/utils.py"
STATE = "megatron/core/parallel_state.py"
CONFIG = "megatron/core/transformer/config.py"
NEW = "mindspeed/core/fusions/swiglu.py"

Edit = tuple[str, str, str]


def edit(*edits: Edit) -> dict[str, bytes]:
    """The tree with texts replaced, each of which must occur once; an empty one makes a file."""
    after = dict(TREE)
    for path, old, new in edits:
        if old:
            assert after[path].count(old.encode()) == 1, (path, old)
            after[path] = after[path].replace(old.encode(), new.encode())
        else:
            assert path not in after
            after[path] = dedent(new).lstrip("\n").encode()
    return after


def gate(after: Mapping[str, bytes], *, python: str = "3.10") -> list[Problem]:
    touched = {p: (OVERLAY,) for p in after if after[p] != TREE.get(p)}
    return check_gate(TREE, after, python=python, touched=touched)


def summary(problems: list[Problem]) -> list[tuple[str, str, str]]:
    return [(p.code, p.path, p.symbol) for p in problems]
