"""What chooses an algorithm of context parallelism, and what is refused."""

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.modules import import_file

BASE: dict[str, Any] = {
    "context_parallel_size": 8,
    "cp_comm_type": None,
    "num_attention_heads": 16,
    "num_query_groups": 4,
    "tensor_model_parallel_size": 1,
    "num_layers": 4,
}


@pytest.fixture(scope="module")
def choice(mindspeed_path: str) -> ModuleType:
    return import_file(Path(mindspeed_path, "mindspeed/core/context_parallel/choice.py"))


def name(choice: ModuleType, layer: int = 1, **settings: Any) -> str:
    found: str = choice.choose(SimpleNamespace(**(BASE | settings)), layer).algorithm.name
    return found


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        ({}, "megatron_cp_algo"),
        ({"cp_comm_type": "p2p"}, "megatron_cp_algo"),
        ({"cp_comm_type": "a2a"}, "ulysses_cp_algo"),
        ({"cp_comm_type": "all_gather"}, "kvallgather_cp_algo"),
        ({"cp_comm_type": "allgather"}, "kvallgather_cp_algo"),
        (
            {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 4]},
            "hybrid_cp_algo",
        ),
        # The parser of Megatron fills in p2p where nothing was said.
        ({"cp_comm_type": "p2p", "context_parallel_algo": "ulysses_cp_algo"}, "ulysses_cp_algo"),
        ({"cp_comm_type": "a2a", "context_parallel_algo": "ulysses_cp_algo"}, "ulysses_cp_algo"),
    ],
)
def test_either_setting_chooses(
    choice: ModuleType, settings: dict[str, Any], algorithm: str
) -> None:
    assert name(choice, **settings) == algorithm


def test_each_layer_may_have_its_own(choice: ModuleType) -> None:
    kinds = ["p2p", "a2a", "all_gather", "a2a"]
    found = [name(choice, layer, cp_comm_type=kinds) for layer in (1, 2, 3, 4, 5)]
    assert found == [
        "megatron_cp_algo",
        "ulysses_cp_algo",
        "kvallgather_cp_algo",
        "ulysses_cp_algo",
        "ulysses_cp_algo",  # a layer of multi-token prediction
    ]


def test_the_cache_policy_holds_for_every_interval_plus_first_layer(choice: ModuleType) -> None:
    settings = {"context_parallel_kv_cache_policy": "half", "context_parallel_cache_interval": 1}
    config = SimpleNamespace(**BASE, **settings)
    assert [choice.choose(config, layer).keep for layer in (1, 2, 3, 4)] == ["half", "", "half", ""]


@pytest.mark.parametrize(
    ("settings", "adapt"),
    [
        ({}, ("coarse", True, False, False)),
        ({"adaptive_cp_only_reschedule": True}, ("", True, False, False)),
        (
            {"adaptive_cp_without_coarse": True, "adaptive_cp_dynamic_attn_mask": True},
            ("exact", False, False, False),
        ),
        (
            {"adaptive_cp_manually_set_mask_list": True, "attention_mask_on_cpu": True},
            ("coarse", True, True, True),
        ),
    ],
)
def test_flags_say_how_a_mask_is_treated(
    choice: ModuleType, settings: dict[str, Any], adapt: tuple[Any, ...]
) -> None:
    config = SimpleNamespace(**BASE, context_parallel_algo="adaptive_cp_algo", **settings)
    assert choice.choose(config).adapt == choice.Adapt(*adapt)


HYBRID = {"context_parallel_algo": "hybrid_cp_algo"}
ULYSSES = {"context_parallel_algo": "ulysses_cp_algo"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cp_comm_type": "p2p2p"}, "cp_comm_type 'p2p2p' is none of"),
        ({"context_parallel_algo": "ring"}, "context_parallel_algo 'ring' is none of"),
        ({"cp_comm_type": "all_gather", **ULYSSES}, "disagree"),
        (HYBRID, "needs --ulysses-degree-in-cp"),
        ({**HYBRID, "ulysses_degree_in_cp": 3}, "does not divide"),
        ({**HYBRID, "ulysses_degree_in_cp": 8}, "leaves no ring"),
        (
            {
                **HYBRID,
                "ulysses_degree_in_cp": 2,
                "hierarchical_context_parallel_sizes": [4, 2],
            },
            "disagree: the first size",
        ),
        ({**HYBRID, "hierarchical_context_parallel_sizes": [2, 2, 2]}, "must be two numbers"),
        ({**ULYSSES, "num_attention_heads": 12}, "12 attention heads cannot be shared out"),
        ({"cp_window_size": 3}, "--cp-window-size 3 must divide"),
        ({"cp_window_size": 8}, "must be less than"),
        ({**ULYSSES, "cp_window_size": 2}, "--cp-window-size 2 must divide"),
        ({**ULYSSES, "use_cp_send_recv_overlap": True}, "is for rings"),
        ({**ULYSSES, "use_fused_ring_attention_update": True}, "is for rings"),
        (
            {"use_fused_ring_attention_update": True, "megatron_cp_in_bnsd": True},
            "no BNSD layout",
        ),
        ({"adaptive_cp_without_coarse": True}, "--adaptive-cp-without-coarse is for adaptive"),
        ({**ULYSSES, "attention_mask_on_cpu": True}, "--attention-mask-on-cpu is for adaptive"),
        ({**ULYSSES, "use_ulysses_allgather_kv": True}, "one key head"),
        ({"use_ulysses_allgather_kv": True, "num_query_groups": 1}, "ulysses_cp_algo"),
        (
            {"context_parallel_kv_cache_policy": "full", "context_parallel_cache_interval": 4},
            "less than the 4 layers",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(
    choice: ModuleType, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        name(choice, **settings)
    assert words in str(caught.value)
