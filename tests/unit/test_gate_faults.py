"""Each kind of fault that a clean apply can hide is found, in the module and symbol it is in."""

import pytest

from unit.gate_tree import CONFIG, MLP, MODEL, NEW, SPECS, STATE, UTILS, Edit, edit, gate, summary

FAULTS: dict[str, tuple[list[Edit], list[tuple[str, str, str]]]] = {
    "a name that a merge left without its definition": (
        [(MLP, "return x * scale + eps", "return npu_scale(x, scale) + eps")],
        [("E602", MLP, "MLP._scale")],
    ),
    "a patch that drops an import still in use": (
        [(MLP, "import torch\n", "")],
        [
            ("E602", MLP, "Swiglu"),
        ],
    ),
    "a second use of a name that upstream leaves undefined once": (
        [
            (
                UTILS,
                "return unknown_upstream_name",
                "unknown_upstream_name\n    return unknown_upstream_name",
            )
        ],
        [("E602", UTILS, "get_te_version")],
    ),
    "an upstream undefined name that spreads to another function": (
        [(UTILS, "return numerator // denominator", "return unknown_upstream_name")],
        [("E602", UTILS, "divide")],
    ),
    "a name that a star import no longer brings": (
        [(SPECS, "return ExpertMLP", "return sort_of(ExpertMLP)")],
        [("E602", SPECS, "get_mlp_spec")],
    ),
    "a local used before it is assigned": (
        [(MLP, "return x * scale + eps", "scaled = scaled * x\n        return scaled")],
        [("E602", MLP, "MLP._scale")],
    ),
    "a name exported and not bound": (
        [(UTILS, "import torch\n", "import torch\n__all__ = ['divide', 'dividde']\n")],
        [("E602", UTILS, "<module>")],
    ),
    "a comment can't silence the gate": (
        [(MLP, "return x * scale + eps", "return npu_scale(x, scale)  # noqa: F821")],
        [("E602", MLP, "MLP._scale")],
    ),
    "a file-wide comment can't silence the gate": (
        [(NEW, "", "# ruff: noqa\n# flake8: noqa\nprint(undefined)\n")],
        [("E602", NEW, "<module>")],
    ),
    "a method defined twice": (
        [
            (
                MLP,
                "    def _activate",
                "    def _scale(self, x, scale, eps=1e-5):\n        return x\n\n    def _activate",
            )
        ],
        [("E603", MLP, "MLP")],
    ),
    "a function defined again after it was used": (
        [
            (
                SPECS,
                "def get_mlp_spec(num_experts=None):",
                "def get_local_spec(num_experts=None, qk_layernorm=False):\n"
                "    return 1\n\n\ndef get_mlp_spec(num_experts=None):",
            )
        ],
        [("E603", SPECS, "<module>")],
    ),
    "a config field that two overlays add": (
        [(CONFIG, "    layers: list", "    ffn_hidden_size: int = 3\n    layers: list")],
        [("E603", CONFIG, "TransformerConfig")],
    ),
    "an import of a module that is not there": (
        [
            (
                MLP,
                "import torch\n",
                "import torch\nfrom mindspeed.core.fusions.swigluu import fused\n",
            ),
            (NEW, "", "def fused(x): return x"),
        ],
        [("E604", MLP, "<module>")],
    ),
    "an import of a name that is not there": (
        [
            (
                MLP,
                "import torch\n",
                "import torch\nfrom mindspeed.core.fusions.swiglu import fuzed\n",
            ),
            (NEW, "", "def fused(x): return x"),
        ],
        [("E604", MLP, "<module>")],
    ),
    "a relative import of a name that is not there": (
        [(MLP, "import divide, log_once", "import divide, log_twice")],
        [("E604", MLP, "<module>")],
    ),
    "a relative import that climbs too far": (
        [(NEW, "", "from .... import megatron_core\nfrom ... import absent\n")],
        [("E604", NEW, "<module>"), ("E604", NEW, "<module>")],
    ),
    "an import inside a function": (
        [
            (
                MLP,
                "return x * scale + eps",
                "from megatron.core.utils import multiply\n        return multiply(x)",
            )
        ],
        [("E604", MLP, "MLP._scale")],
    ),
    "a plain import of an absent module": (
        [(NEW, "", "import megatron.core.transformer.attention as attention\n")],
        [("E604", NEW, "<module>")],
    ),
    "a guarded import that a patch adds for this very release": (
        [
            (
                MLP,
                "import torch\n",
                "import torch\ntry:\n    from megatron.core.utils import multiply\n"
                "except ImportError:\n    multiply = None\n",
            )
        ],
        [("E604", MLP, "<module>")],
    ),
    "a name that exists only for type checkers": (
        [
            (
                UTILS,
                "import torch\n",
                "import torch\nfrom typing import TYPE_CHECKING\n"
                "if TYPE_CHECKING:\n    from megatron.core.transformer.mlp import MLP\n",
            ),
            (NEW, "", "from megatron.core.utils import MLP\n"),
        ],
        [("E604", NEW, "<module>")],
    ),
    "a removed function that others import": (
        [(UTILS, "def log_once", "def log_one_time")],
        [("E604", MLP, "<module>")],
    ),
    "a removed function that others call through the module": (
        [(STATE, "def get_tensor_model_parallel_group", "def get_tp_group")],
        [("E606", MODEL, "build"), ("E606", MLP, "MLP.__init__")],
    ),
    "a removed function that others take with a star import": (
        [
            (UTILS, "def divide(", "def divide_exactly("),
            ("megatron/core/__init__.py", "from .utils import divide\n", ""),
            ("megatron/core/__init__.py", ', "divide"', ""),
            (MLP, "import divide, log_once", "import divide_exactly as divide, log_once"),
        ],
        [("E602", SPECS, "get_mlp_spec")],
    ),
    "a parameter that landed in the neighbouring function": (
        [
            (
                SPECS,
                "def get_te_spec(num_experts=None, qk_layernorm=False):",
                "def get_te_spec(num_experts=None, qk_layernorm=False, fused=False):",
            ),
            (
                MODEL,
                "get_local_spec(8, qk_layernorm=True)",
                "get_local_spec(8, qk_layernorm=True, fused=True)",
            ),
        ],
        [("E605", MODEL, "build")],
    ),
    "a use that landed in the neighbouring function": (
        [
            (
                SPECS,
                "def get_te_spec(num_experts=None, qk_layernorm=False):\n"
                "    mlp = get_mlp_spec(num_experts=num_experts)",
                "def get_te_spec(num_experts=None, qk_layernorm=False):\n"
                "    mlp = get_mlp_spec(num_experts=num_experts if fused else 1)",
            ),
            (
                SPECS,
                "def get_local_spec(num_experts=None, qk_layernorm=False):",
                "def get_local_spec(num_experts=None, qk_layernorm=False, fused=False):",
            ),
        ],
        [("E602", SPECS, "get_te_spec")],
    ),
    "an unknown keyword": (
        [
            (
                SPECS,
                "def get_te_spec(num_experts=None, qk_layernorm=False):\n"
                "    mlp = get_mlp_spec(num_experts=num_experts)",
                "def get_te_spec(num_experts=None, qk_layernorm=False):\n"
                "    mlp = get_mlp_spec(num_expert=num_experts)",
            )
        ],
        [("E605", SPECS, "get_te_spec")],
    ),
    "a positional argument too few for a method": (
        [(MLP, "self._scale(hidden_states, per_token_scale)", "self._scale(hidden_states)")],
        [("E605", MLP, "MLP.forward")],
    ),
    "an argument too many for an inherited method": (
        [
            (
                MODEL,
                "self._scale(hidden_states, 2.0, 1e-6)",
                "self._scale(hidden_states, 2.0, 1e-6, None)",
            )
        ],
        [("E605", MODEL, "GatedMLP.forward")],
    ),
    "an argument given twice": (
        [(MODEL, "get_te_spec(8, True)", "get_te_spec(8, True, num_experts=8)")],
        [("E605", MODEL, "build")],
    ),
    "a call through the module": (
        [
            (
                MLP,
                "parallel_state.get_tensor_model_parallel_group()",
                "parallel_state.get_tensor_model_parallel_group(check=False)",
            )
        ],
        [("E605", MLP, "MLP.__init__")],
    ),
    "a call through an alias of the module": (
        [
            (
                MODEL,
                "mpu.get_tensor_model_parallel_group()",
                "mpu.get_tensor_model_parallel_group(1, 2)",
            )
        ],
        [("E605", MODEL, "build")],
    ),
    "a call through an alias of a class method": (
        [
            (
                NEW,
                "",
                """
            class Tool:
                @classmethod
                def make(cls, size): ...

            build = Tool.make
            build()
        """,
            )
        ],
        [("E605", NEW, "<module>")],
    ),
    "a keyword-only parameter given by position": (
        [
            (
                NEW,
                "",
                "from megatron.core.parallel_state import initialize_model_parallel as init\n"
                "init(1, 1, 'tp')\n",
            )
        ],
        [("E605", NEW, "<module>")],
    ),
    "a constructor": (
        [
            (
                NEW,
                "",
                "from megatron.core.transformer.mlp import ExpertMLP\n"
                "def f(config): return ExpertMLP(config)\n",
            )
        ],
        [("E605", NEW, "f")],
    ),
    "an inherited constructor": (
        [
            (
                NEW,
                "",
                "from megatron.core.models.gpt.model import GatedMLP\n"
                "def f(config): return GatedMLP(config, expert=True)\n",
            )
        ],
        [("E605", NEW, "f")],
    ),
    "a dataclass field that this release lacks": (
        [
            (
                NEW,
                "",
                "from megatron.core.transformer.config import TransformerConfig as C\n"
                "c = C(64, use_fused_swiglu=True)\n",
            )
        ],
        [("E605", NEW, "<module>")],
    ),
    "a required dataclass field": (
        [
            (
                NEW,
                "",
                "from megatron.core.transformer.config import TransformerConfig\n"
                "c = TransformerConfig(num_layers=2)\n",
            )
        ],
        [("E605", NEW, "<module>")],
    ),
    "an autograd function applied with an argument too few": (
        [(MLP, "return Swiglu.apply(x, limit)", "return Swiglu.apply(x)")],
        [("E605", MLP, "swiglu")],
    ),
    "a call of super().__init__": (
        [
            (
                MLP,
                "super().__init__(config, True)",
                "super().__init__(config, True, None, num_experts)",
            )
        ],
        [("E605", MLP, "ExpertMLP.__init__")],
    ),
    "a changed signature that untouched callers don't fit": (
        [
            (
                SPECS,
                "def get_te_spec(num_experts=None, qk_layernorm=False):",
                "def get_te_spec(num_experts=None, *, qk_layernorm=False):",
            )
        ],
        [("E605", MODEL, "build")],
    ),
    "a changed method that an untouched subclass doesn't fit": (
        [
            (
                MLP,
                "def _scale(self, x, scale, eps=1e-5):\n        return x * scale + eps",
                "def _scale(self, x, scale):\n        return x * scale",
            )
        ],
        [("E605", MODEL, "GatedMLP.forward")],
    ),
    "a removed method that an untouched subclass calls": (
        [
            (
                MLP,
                "    def _scale(self, x, scale, eps=1e-5):\n        return x * scale + eps\n\n",
                "",
            ),
            (MLP, "self._scale(hidden_states, per_token_scale)", "hidden_states"),
        ],
        [("E606", MODEL, "GatedMLP.forward")],
    ),
    "a parameter put in the middle of a signature": (
        [
            (
                SPECS,
                "def get_te_spec(num_experts=None, qk_layernorm=False):",
                "def get_te_spec(num_experts=None, fused=False, qk_layernorm=False):",
            )
        ],
        [("E605", MODEL, "build")],
    ),
    "text that no Python parses": (
        [(MLP, "return x * scale + eps", "<<<<<<< ours\n        return x * scale + eps")],
        [("E601", MLP, "MLP._scale")],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_finds(fault: str) -> None:
    edits, expected = FAULTS[fault]
    found = summary(gate(edit(*edits)))
    assert sorted(set(found)) == sorted(set(expected))
