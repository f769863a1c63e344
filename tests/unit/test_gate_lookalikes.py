"""What only looks like a fault passes: the gate reports nothing it isn't sure of."""

import pytest

from mindspeed_overlay.gate import check_gate
from unit.gate_tree import (
    CONFIG,
    MLP,
    MODEL,
    NEW,
    OVERLAY,
    SPECS,
    STATE,
    TREE,
    UTILS,
    Edit,
    edit,
    gate,
)

LOOKALIKES: dict[str, list[Edit]] = {
    "lines above an upstream undefined name": [
        (UTILS, "import torch\n", "import torch\nimport math\n\nTAU = 2 * math.pi\n"),
    ],
    "an upstream guarded import of an absent module": [
        (MLP, "import torch\n", "import torch\nimport math\n"),
    ],
    "a hook with an import of ours": [
        (
            MLP,
            "import torch\n",
            "import torch\nfrom mindspeed.core.fusions import swiglu as fused\n",
        ),
        (MLP, "return swiglu(x, 1.0)", "return fused.fused_swiglu(x, 1.0)"),
        (NEW, "", "def fused_swiglu(x, limit=None): return x\n"),
    ],
    "a parameter with a default at the end": [
        (MLP, "scale, eps=1e-5):", "scale, eps=1e-5, fused=False, *, late=None):"),
    ],
    "a parameter added with all its callers": [
        (SPECS, "def get_te_spec(num_experts=None,", "def get_te_spec(config, num_experts=None,"),
        (MODEL, "get_te_spec(8, True)", "get_te_spec(config, 8, True)"),
    ],
    "two parameters swapped with their arguments": [
        (
            SPECS,
            "def get_te_spec(num_experts=None, qk_layernorm=False):",
            "def get_te_spec(qk_layernorm=False, num_experts=None):",
        ),
        (MODEL, "get_te_spec(8, True)", "get_te_spec(True, 8)"),
    ],
    "a renamed parameter given by position": [
        (SPECS, "def get_te_spec(num_experts=None,", "def get_te_spec(num_experts_global=None,"),
        (
            SPECS,
            "qk_layernorm=False):\n    mlp = get_mlp_spec(num_experts=num_experts)\n"
            "    return (mlp, qk_layernorm)\n\n\ndef get_mlp",
            "qk_layernorm=False):\n    return (1, qk_layernorm)\n\n\ndef get_mlp",
        ),
    ],
    "a removed function that nobody uses": [
        (STATE, "def initialize_model_parallel(", "def initialize_groups("),
    ],
    "a moved function that the old place imports back": [
        (
            UTILS,
            "def log_once(logger, message, *, level=20):\n    logger.log(level, message)\n",
            "from mindspeed.core.fusions.swiglu import log_once\n",
        ),
        (NEW, "", "def log_once(logger, message, *, level=20): ...\n"),
    ],
    "a guarded import for another release in a new file": [
        (
            NEW,
            "",
            "try:\n    from megatron.core.utils import is_later\nexcept ImportError:\n"
            "    is_later = None\n",
        ),
    ],
    "an import for type checkers in a new file": [
        (
            NEW,
            "",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
            "    from megatron.core.later import Config\n",
        ),
    ],
    "an import of a part this tree doesn't carry": [
        (
            NEW,
            "",
            "from megatron.training import get_args\n"
            "def f():\n    import megatron.legacy.model\n    from megatron import energon\n"
            "    return get_args()\n",
        ),
    ],
    "imports of submodules, packages and compiled modules": [
        (
            NEW,
            "",
            "import megatron.core.transformer.mlp as mlp\nimport megatron.core.models\n"
            "from megatron.core import transformer, models, mpu\n"
            "from megatron.core.models import gpt\nfrom megatron.core.models.gpt import specs\n"
            "from megatron.core.datasets.helpers_cpp import anything\n"
            "from . import swiglu\nfrom .swiglu import transformer as t\n"
            "from ...core.fusions import swiglu as s\n"
            "def f(): return megatron.core.models.gpt.specs.get_mlp_spec(num_experts=1)\n",
        ),
    ],
    "a name from a module with __getattr__": [
        ("mindspeed/ops/__init__.py", "", "def __getattr__(name): return name\n"),
        (
            NEW,
            "",
            "from mindspeed.ops import npu_anything\nfrom mindspeed import ops\nops.npu_more(1)\n",
        ),
    ],
    "names from star imports": [
        (
            NEW,
            "",
            "from megatron.core.models.gpt.specs import *\nfrom megatron.core import *\n"
            "get_te_spec(num_experts=divide(1, 1))\nprint(MLP, parallel_state)\n",
        ),
    ],
    "a submodule exported by name": [
        ("mindspeed/core/__init__.py", "", "__all__ = ['fusions', 'tools']\ntools = 1\n"),
        (NEW, "", "from mindspeed.core import fusions\n"),
    ],
    "a property, overloads and a registered implementation": [
        (
            NEW,
            "",
            """
            from functools import singledispatch
            from typing import overload

            class A:
                @property
                def width(self): return 1

                @width.setter
                def width(self, value): self.w = value

                @overload
                def get(self, x: int) -> int: ...
                @overload
                def get(self, x: str) -> str: ...
                def get(self, x): return x

            @singledispatch
            def show(x): print(x)

            @show.register
            def _(x: int): print(x)

            @show.register
            def _(x: str): print(x)
        """,
        ),
    ],
    "alternative definitions": [
        (
            NEW,
            "",
            """
            try:
                from megatron.core.later import norm
            except ImportError:
                def norm(x): return x

            if norm:
                def scale(x): return x
            else:
                def scale(x, y): return x

            scale(1, 2)
            norm(1, 2, 3)
        """,
        ),
    ],
    "a local name that hides a module or function": [
        (
            NEW,
            "",
            """
            from megatron.core import parallel_state
            from megatron.core.utils import divide

            def with_parameter(parallel_state, divide):
                return parallel_state.anything(), divide(1)

            def with_local():
                divide = len
                return divide([1])

            def with_loop(states):
                return [parallel_state.anything() for parallel_state in states]

            def with_inner():
                def divide(a): return a
                return divide(1)

            one = sorted([1], key=lambda divide: divide(1))
            two = [divide(1) for divide in (len, sum)]
        """,
        ),
    ],
    "calls with unpacked arguments": [
        (
            NEW,
            "",
            """
            from megatron.core.models.gpt.model import GatedMLP
            from megatron.core.utils import divide, log_once

            def f(args, kwargs, config):
                divide(*args)
                divide(1, **kwargs)
                log_once(*args, level=10)
                return GatedMLP(config, **kwargs)
        """,
        ),
    ],
    "a decorator that may change the parameters": [
        (
            NEW,
            "",
            """
            import torch
            import triton
            from megatron.core.jit import jit_fuser

            @triton.autotune(configs=[])
            @triton.jit
            def kernel(x, size): ...

            @jit_fuser
            def bias(x, *, y=None): return x

            def run(x):
                kernel[(1,)](x)
                kernel(x, 1, num_warps=4)
                return bias(x, y=x)
        """,
        ),
    ],
    "constructors that text can't see": [
        (
            NEW,
            "",
            """
            import enum
            from typing import NamedTuple

            import torch
            from megatron.core.transformer.config import TransformerConfig
            from unknown import Base, decorate

            class Kind(enum.Enum):
                A = 1

            class Pair(NamedTuple):
                a: int
                b: int = 2

            class Known(Base):
                def __init__(self, x): ...

            class Made:
                def __new__(cls, *args): return 1
                def __init__(self): ...

            class Meta(metaclass=type(Base)):
                def __init__(self): ...

            @decorate
            class Extended(TransformerConfig):
                x: int = 1

            def f():
                return Kind(1), Pair(1), Known(1, 2), Made(1), Meta(1), Extended(1, extra=2)
        """,
        ),
    ],
    "dataclasses with defaults, factories and class variables": [
        (
            NEW,
            "",
            """
            from dataclasses import dataclass, field, replace
            from megatron.core.transformer.config import TransformerConfig as C

            @dataclass
            class Mine(C):
                hidden_size: int = 64
                extra: list = field(default_factory=list)

            def f():
                Mine()
                Mine(32, 2, None, [], [])
                return replace(C(hidden_size=64, layers=[1]), num_layers=3)
        """,
        ),
    ],
    "a method that an attribute replaces": [
        (
            NEW,
            "",
            """
            from megatron.core.transformer.mlp import MLP

            class Fused(MLP):
                def __init__(self, config, scale):
                    super().__init__(config, tp_group=None)
                    self._scale = scale

                def forward(self, x):
                    return self._scale(x)

            class Dynamic(MLP):
                def __init__(self, config, names):
                    super().__init__(config)
                    for name in names:
                        setattr(self, name, len)

                def forward(self, x):
                    return self._scale(x)
        """,
        ),
    ],
    "static, class and unbound methods": [
        (
            NEW,
            "",
            """
            class Tool:
                @staticmethod
                def add(a, b): return a + b

                @classmethod
                def make(cls, size=1): return cls()

                def use(self, x):
                    self.add(1, 2)
                    Tool.add(1, 2)
                    self.make(2)
                    return Tool.use(self, x)

                @classmethod
                def again(cls):
                    cls.make(3)
                    return cls.use(cls(), 1)

            make, use, add = Tool.make, Tool.use, Tool.add
            build = Tool.make
            apply = Tool.use
            build(4)
            apply(Tool(), 1)
            again = build
            again(5)
            size = len
            size([1])
        """,
        ),
    ],
    "an abstract method called with what its implementations take": [
        (
            NEW,
            "",
            """
            from abc import ABC, abstractmethod

            class Base(ABC):
                @abstractmethod
                def run(self, x): ...

                def go(self): return self.run(1, 2)
        """,
        ),
    ],
    "an autograd function with defaults or setup_context": [
        (
            NEW,
            "",
            """
            import torch

            class A(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x, y=None): return x

            class B(torch.autograd.Function):
                @staticmethod
                def forward(x, y): return x

                @staticmethod
                def setup_context(ctx, inputs, output): ...

            def f(x, args):
                return A.apply(x), A.apply(x, 1), B.apply(x, 1), A.apply(*args)
        """,
        ),
    ],
    "super() under several bases": [
        (
            NEW,
            "",
            """
            from megatron.core.transformer.mlp import MLP
            from unknown import Mixin

            class Mixed(Mixin, MLP):
                def __init__(self, config, extra):
                    super().__init__(config, extra, 3, 4, 5)
        """,
        ),
    ],
    "a global that a function binds": [
        (
            STATE,
            "_GROUP = None\n",
            "def set_late():\n    global LATE\n    LATE = 1\n\n\n_GROUP = None\n",
        ),
        (NEW, "", "from megatron.core.parallel_state import LATE\n"),
    ],
    "a class that replaces a removed base's method": [
        (MLP, "    def _activate(self, x):\n", "    def _activate(self, x, *, fused=False):\n"),
    ],
    "text in comments and strings": [
        (
            MLP,
            "return x * scale + eps",
            "# from megatron.core import absent\n"
            "        '''from megatron.core.absent import x; divide(1)'''\n"
            "        return x * scale + eps",
        ),
    ],
    "a field with a new default": [
        (CONFIG, "num_layers: int = 1", "num_layers: int = 2\n    use_fused_swiglu: bool = False"),
    ],
}


@pytest.mark.parametrize("lookalike", LOOKALIKES)
def test_the_gate_passes(lookalike: str) -> None:
    assert gate(edit(*LOOKALIKES[lookalike])) == []


def test_the_pristine_tree_against_itself_has_no_finding() -> None:
    touched = dict.fromkeys(TREE, (OVERLAY,))
    assert check_gate(TREE, dict(TREE), python="3.10", touched=touched) == []
