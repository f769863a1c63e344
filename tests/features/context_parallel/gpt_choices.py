"""How a GPT is spread over context-parallel ranks, and how such scenarios are run."""

from typing import Any

from harness.runner import Named, run_on_device
from harness.trees import Trees
from harness.worker import Scenario

SCENARIOS = "features.context_parallel.gpt_scenarios"
OVERLAYS = (
    "context-parallel/hybrid-cp",
    "context-parallel/kvallgather-cp",
    "context-parallel/double-ring-cp",
    "context-parallel/cp-send-recv-overlap",
    "context-parallel/fused-ring-attention-update",
    "context-parallel/megatron-cp-in-bnsd",
    "context-parallel/cp-kv-cache",
    "context-parallel/adaptive-cp",
)

EXCHANGES = ("p2p", "a2a", "all_gather", "a2a+p2p")
# Megatron's own settings, then ours.
CHOICES: dict[str, dict[str, Any]] = {
    "p2p": {"cp_comm_type": "p2p"},
    "a2a": {"cp_comm_type": "a2a"},
    "all_gather": {"cp_comm_type": "all_gather"},
    "a2a+p2p": {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 2]},
    "each layer": {"cp_comm_type": ["p2p", "a2a"]},
    "ring, double": {"context_parallel_algo": "megatron_cp_algo", "cp_window_size": 2},
    "ring, overlap": {"use_cp_send_recv_overlap": True},
    "ring, fused, general": {
        "use_fused_ring_attention_update": True,
        "attention_mask_type": "general",
    },
    "ring, bnsd": {"megatron_cp_in_bnsd": True},
    "ulysses": {"context_parallel_algo": "ulysses_cp_algo"},
    "hybrid": {"context_parallel_algo": "hybrid_cp_algo", "ulysses_degree_in_cp": 2},
    "kv-all-gather": {"context_parallel_algo": "kvallgather_cp_algo"},
    "ring, kept": {"context_parallel_kv_cache_policy": "full"},
    "ring, kept every other": {
        "context_parallel_kv_cache_policy": "half",
        "context_parallel_cache_interval": 1,
    },
    "ulysses, again": {
        "context_parallel_algo": "ulysses_cp_algo",
        "context_parallel_kv_cache_policy": "full",
    },
    "ulysses, keys again": {
        "context_parallel_algo": "ulysses_cp_algo",
        "context_parallel_kv_cache_policy": "half",
    },
}
ADAPTIVE_ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"context_parallel_algo": "adaptive_cp_algo"},
    {"context_parallel_algo": "hybrid_adaptive_cp_algo", "ulysses_degree_in_cp": 2},
)
ADAPTIVE: dict[str, dict[str, Any]] = {
    "moving": {"adaptive_cp_without_coarse": True},
    "moving, anew": {"adaptive_cp_dynamic_attn_mask": True},
    "staying": {"adaptive_cp_only_reschedule": True},
    "on cpu": {"attention_mask_on_cpu": True},
    "blocks": {"adaptive_cp_manually_set_mask_list": True},
}


def scenario(function: str = "train", **options: Any) -> Scenario:
    return Scenario(f"{SCENARIOS}:{function}", tuple(options.items()))


def run(trees: Trees, tag: str, scenarios: list[Scenario], *, cp: int, **sizes: int) -> list[Named]:
    """Each scenario on the patched tree; what rank 0 answered."""
    world = cp * sizes.get("tensor_model_parallel_size", 1)
    sizes = {"context_parallel_size": cp, **sizes}
    return run_on_device(trees.patched(tag, OVERLAYS), scenarios, world_size=world, sizes=sizes)[0]
