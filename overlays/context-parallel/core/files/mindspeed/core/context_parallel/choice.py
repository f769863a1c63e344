"""Which algorithm, from Megatron's settings and ours; and what cannot be.

Megatron's own setting is `cp_comm_type`, for all layers or for each: p2p, a2a, all_gather, a2a+p2p.
`context_parallel_algo` says the same with MindSpeed's names. Where both are given they must agree;
"p2p" is what Megatron's parser fills in, so there it means that nothing was said.

Reads a config only. No torch, no Megatron.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Algorithm:
    """A row of the table of algorithms.

    Attributes:
        name: MindSpeed's.
        comm_type: Megatron's, "" if it has none.
        module: beside this one, that computes it.
        function: of that module, an `attention.Attention`.
        overlay: that brings the module.
    """

    name: str
    comm_type: str
    module: str
    function: str
    overlay: str


ALGORITHMS = (
    Algorithm("megatron_cp_algo", "p2p", "ring", "attend_ring", "ring-attention-cp"),
    Algorithm("ulysses_cp_algo", "a2a", "ulysses", "attend_ulysses", "ulysses-cp"),
    Algorithm("hybrid_cp_algo", "a2a+p2p", "hybrid", "attend_hybrid", "hybrid-cp"),
    Algorithm("kvallgather_cp_algo", "all_gather", "kv_allgather", "attend_kv", "kvallgather-cp"),
    Algorithm("adaptive_cp_algo", "", "adaptive", "attend_adaptive", "adaptive-cp"),
    Algorithm("hybrid_adaptive_cp_algo", "", "adaptive", "attend_hybrid_adaptive", "adaptive-cp"),
)
_BY_COMM_TYPE = {row.comm_type: row for row in ALGORITHMS if row.comm_type}
_OF_ADAPTIVE = (
    "adaptive_cp_only_reschedule",
    "adaptive_cp_without_coarse",
    "adaptive_cp_dynamic_attn_mask",
    "adaptive_cp_manually_set_mask_list",
    "attention_mask_on_cpu",
)
_BY_NAME = {row.name: row for row in ALGORITHMS}


@dataclass(frozen=True)
class Adapt:
    """How the adaptive algorithms treat a mask.

    Attributes:
        move: rows may move between ranks: "" not, "coarse" in units of rows, "exact" one by one.
        order_once: rows keep the order that suits the first mask.
        own_blocks: the blocks of the mask come from the user, see `mask_blocks`.
        mask_on_cpu: the mask is there, and only blocks of it come to the device.
    """

    move: str = ""
    order_once: bool = False
    own_blocks: bool = False
    mask_on_cpu: bool = False


@dataclass(frozen=True)
class Choice:
    """How one layer computes attention over a sequence spread over p ranks.

    Attributes:
        algorithm: of the table.
        size: p.
        ulysses: ranks that share heads; the rest of p shares rows. p for Ulysses, 1 for rings.
        window: of a double ring, 1 for a plain one.
        overlap: sends and receives on communicators of their own.
        fused_merge: merge parts by one operator.
        bnsd: compute in that layout.
        keep: the cache policy for the backward pass: "", "half" or "full".
        gather_keys: Ulysses gathers the only key head.
        mask_type: "causal", "general", or "" to look at the mask.
        adapt: how the adaptive algorithms treat a mask.
    """

    algorithm: Algorithm
    size: int
    ulysses: int = 1
    window: int = 1
    overlap: bool = False
    fused_merge: bool = False
    bnsd: bool = False
    keep: str = ""
    gather_keys: bool = False
    mask_type: str = ""
    adapt: Adapt = Adapt()

    @property
    def ring(self) -> int:
        """Ranks that share rows after heads were traded."""
        return self.size // self.ulysses


def choose(config: Any, layer_number: int = 1) -> Choice:
    """How a layer computes attention.

    Args:
        config: a TransformerConfig with context_parallel_size > 1.
        layer_number: from 1 on.

    Raises:
        ValueError: settings that contradict each other or cannot be, each with its rule.
    """
    algorithm = _find_algorithm(config, layer_number)
    hybrid = algorithm.name.startswith("hybrid")
    size = config.context_parallel_size
    ulysses = {"ulysses_cp_algo": size}.get(algorithm.name, 1)
    choice = Choice(
        algorithm,
        size,
        ulysses=_find_ulysses_degree(config) if hybrid else ulysses,
        window=getattr(config, "cp_window_size", 1),
        overlap=getattr(config, "use_cp_send_recv_overlap", False),
        fused_merge=getattr(config, "use_fused_ring_attention_update", False),
        bnsd=getattr(config, "megatron_cp_in_bnsd", False),
        keep=_find_keep(config, layer_number),
        gather_keys=getattr(config, "use_ulysses_allgather_kv", False),
        mask_type=getattr(config, "attention_mask_type", None) or "",
        adapt=_read_adapt(config),
    )
    faults = list(find_faults(choice, config))
    if faults:
        raise ValueError("; ".join(faults))
    return choice


def _read_adapt(config: Any) -> Adapt:
    exact = getattr(config, "adaptive_cp_without_coarse", False)
    stays = getattr(config, "adaptive_cp_only_reschedule", False)
    return Adapt(
        move="" if stays else "exact" if exact else "coarse",
        order_once=not getattr(config, "adaptive_cp_dynamic_attn_mask", False),
        own_blocks=getattr(config, "adaptive_cp_manually_set_mask_list", False),
        mask_on_cpu=getattr(config, "attention_mask_on_cpu", False),
    )


def _find_algorithm(config: Any, layer_number: int) -> Algorithm:
    name = getattr(config, "context_parallel_algo", None)
    comm_type = config.cp_comm_type
    if isinstance(comm_type, (list, tuple)):
        # Layers after the last one (multi-token prediction) do as the last one does.
        comm_type = comm_type[min(layer_number, len(comm_type)) - 1]
    comm_type = (comm_type or "p2p").lower()
    comm_type = {"allgather": "all_gather"}.get(comm_type, comm_type)
    if comm_type not in _BY_COMM_TYPE:
        raise ValueError(f"cp_comm_type {comm_type!r} is none of {', '.join(_BY_COMM_TYPE)}")
    if name is None:
        return _BY_COMM_TYPE[comm_type]
    if name not in _BY_NAME:
        raise ValueError(f"context_parallel_algo {name!r} is none of {', '.join(_BY_NAME)}")
    chosen = _BY_NAME[name]
    if comm_type not in ("p2p", chosen.comm_type):
        raise ValueError(
            f"--context-parallel-algo {name} and cp_comm_type {comm_type} disagree: leave one out, "
            f"or set cp_comm_type to {chosen.comm_type or 'None'}"
        )
    return chosen


def _find_ulysses_degree(config: Any) -> int:
    sizes = getattr(config, "hierarchical_context_parallel_sizes", None)
    degree = getattr(config, "ulysses_degree_in_cp", None)
    if sizes is not None and len(sizes) != 2:
        raise ValueError(f"hierarchical_context_parallel_sizes must be two numbers, not {sizes}")
    if sizes is not None and degree not in (None, sizes[0]):
        raise ValueError(
            f"--ulysses-degree-in-cp {degree} and hierarchical_context_parallel_sizes {sizes} "
            f"disagree: the first size is the degree"
        )
    degree = sizes[0] if degree is None and sizes is not None else degree
    if degree is None:
        raise ValueError(
            "the hybrid of Ulysses and ring needs --ulysses-degree-in-cp (ulysses_degree_in_cp) or "
            "--hierarchical-context-parallel-sizes"
        )
    return int(degree)


def _find_keep(config: Any, layer_number: int) -> str:
    """MindSpeed's interval: of every interval + 1 layers the first keeps."""
    interval = getattr(config, "context_parallel_cache_interval", 0)
    policy: str | None = getattr(config, "context_parallel_kv_cache_policy", None)
    return policy if policy and (layer_number - 1) % (interval + 1) == 0 else ""


def find_faults(choice: Choice, config: Any) -> Iterator[str]:
    """Rules that a choice breaks."""
    heads = config.num_attention_heads // config.tensor_model_parallel_size
    name = choice.algorithm.name
    if choice.size % choice.ulysses or choice.ulysses < 1:
        yield (
            f"--ulysses-degree-in-cp {choice.ulysses} does not divide context_parallel_size "
            f"{choice.size}"
        )
        return
    if name.startswith("hybrid") and choice.ring == 1:
        yield (
            f"--ulysses-degree-in-cp {choice.ulysses} leaves no ring of context_parallel_size "
            f"{choice.size}: use --context-parallel-algo ulysses_cp_algo"
        )
    if heads % choice.ulysses:
        yield (
            f"{config.num_attention_heads} attention heads cannot be shared out to "
            f"{config.tensor_model_parallel_size} tensor-parallel times {choice.ulysses} Ulysses "
            "ranks: the heads must be a multiple"
        )
    adaptive = "adaptive" in name
    rings = adaptive or name in ("megatron_cp_algo", "hybrid_cp_algo")
    for field in _OF_ADAPTIVE:
        if getattr(config, field, False) and not adaptive:
            yield f"--{field.replace('_', '-')} is for adaptive algorithms, not for {name}"
    if choice.window > 1 and (not rings or adaptive or choice.ring % choice.window):
        yield f"--cp-window-size {choice.window} must divide the {choice.ring} ranks of a ring"
    elif choice.window > 1 and choice.window == choice.ring:
        yield f"--cp-window-size {choice.window} must be less than a ring of {choice.ring} ranks"
    for flag, on in (
        ("--use-cp-send-recv-overlap", choice.overlap),
        ("--use-fused-ring-attention-update", choice.fused_merge),
    ):
        if on and not rings:
            yield f"{flag} is for rings (megatron, hybrid and adaptive), not for {name}"
    if choice.gather_keys and (name != "ulysses_cp_algo" or _count_key_heads(config) != 1):
        yield (
            "--use-ulysses-allgather-kv is for --context-parallel-algo ulysses_cp_algo with one "
            f"key head on a tensor-parallel rank, not for {name} with {_count_key_heads(config)}"
        )
    if choice.bnsd and name == "ulysses_cp_algo" and (choice.keep or choice.gather_keys):
        yield "--megatron-cp-in-bnsd cannot be together with a cache policy of Ulysses"
    interval = getattr(config, "context_parallel_cache_interval", 0)
    if interval >= max(config.num_layers, 1):
        yield (
            f"--context-parallel-cache-interval {interval} must be less than the "
            f"{config.num_layers} layers"
        )
    if choice.fused_merge and choice.bnsd:
        yield (
            "--use-fused-ring-attention-update: the operator has no BNSD layout, leave "
            "--megatron-cp-in-bnsd out"
        )


def _count_key_heads(config: Any) -> int:
    """Key heads of one tensor-parallel rank."""
    groups = config.num_query_groups or config.num_attention_heads
    return max(1, groups // config.tensor_model_parallel_size)
