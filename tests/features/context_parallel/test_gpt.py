"""A GPT with its sequence spread over ranks trains like one on a single rank."""

from typing import Any

import pytest
import torch

from ascend_sim.ranks import RankError
from harness.compare import assert_near, assert_same
from harness.runner import Named, run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
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


def scenario(function: str = "train", **options: Any) -> Scenario:
    return Scenario(f"{SCENARIOS}:{function}", tuple(options.items()))


def run(trees: Trees, tag: str, scenarios: list[Scenario], *, cp: int, **sizes: int) -> list[Named]:
    """Each scenario on the patched tree; what rank 0 answered."""
    world = cp * sizes.get("tensor_model_parallel_size", 1)
    sizes = {"context_parallel_size": cp, **sizes}
    return run_on_device(trees.patched(tag, OVERLAYS), scenarios, world_size=world, sizes=sizes)[0]


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_every_algorithm_trains_like_a_single_rank(trees: Trees, tag: str) -> None:
    steps = 10 if tag == "core_v0.16.1" else 2
    (want,) = run_on_device(trees.pristine(tag), [scenario(steps=steps)])[0]
    names = list(CHOICES)
    got = run(trees, tag, [scenario(steps=steps, **CHOICES[name]) for name in names], cp=4)
    assert want["losses"][0] > want["losses"][-1] or steps < 10
    for name, found in zip(names, got, strict=True):
        assert_near(found, want, case=name)


@pytest.mark.slow
@pytest.mark.parametrize("tag", [tag for tag in ALL_RELEASES if tag not in COMPARED_RELEASES])
def test_every_exchange_trains_on_the_other_releases(trees: Trees, tag: str) -> None:
    (want,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    (documents,) = run_on_device(trees.pristine(tag), [scenario("train_documents")])[0]
    chosen = ("p2p", "a2a", "all_gather", "a2a+p2p", "each layer")
    each = [scenario(**CHOICES[name]) for name in chosen]
    each += [scenario("train_packed", padded=True, **CHOICES[name]) for name in chosen]
    got = run(trees, tag, each, cp=4)
    for index, name in enumerate(chosen):
        assert_near(got[index], want, case=name)
        assert_near(got[len(chosen) + index], documents, case=f"{name}, packed")


def test_masks_that_come_as_tensors_are_those_of_a_single_rank(trees: Trees) -> None:
    tag = "core_v0.16.1"
    chosen = ("p2p", "a2a", "all_gather", "a2a+p2p")
    masks = ("reset", "none", "late")
    wants = run_on_device(trees.pristine(tag), [scenario(mask=m) for m in ("reset", "late")])[0]
    (causal,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    expected = {"reset": wants[0], "none": causal, "late": wants[1]}
    each = [scenario(mask=mask, **CHOICES[name]) for mask in masks for name in chosen]
    each += [scenario(mask="reset", attention_mask_type="causal", **CHOICES["p2p"])]
    *got, ignored = run(trees, tag, each, cp=4)
    for index, found in enumerate(got):
        mask, name = masks[index // len(chosen)], chosen[index % len(chosen)]
        assert_near(found, expected[mask], case=f"{name}, {mask}")
    assert_near(ignored, causal)


ADAPTIVE: dict[str, dict[str, Any]] = {
    "moving": {"adaptive_cp_without_coarse": True},
    "moving, anew": {"adaptive_cp_dynamic_attn_mask": True},
    "staying": {"adaptive_cp_only_reschedule": True},
    "on cpu": {"attention_mask_on_cpu": True},
    "blocks": {"adaptive_cp_manually_set_mask_list": True},
}


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_adaptive_algorithms_train_like_a_single_rank(trees: Trees, tag: str) -> None:
    masks = ("reset", "band", "late")
    wants = run_on_device(trees.pristine(tag), [scenario(mask=mask) for mask in masks])[0]
    algorithms: tuple[dict[str, Any], ...] = (
        {"context_parallel_algo": "adaptive_cp_algo"},
        {"context_parallel_algo": "hybrid_adaptive_cp_algo", "ulysses_degree_in_cp": 2},
    )
    each = [(m, a, w) for m in masks for a in algorithms for w in ADAPTIVE]
    if tag != "core_v0.16.1":
        each = each[::7]
    scenarios = [scenario(mask=m, **a, **ADAPTIVE[w]) for m, a, w in each]
    for case, found in zip(each, run(trees, tag, scenarios, cp=4), strict=True):
        assert_near(found, wants[masks.index(case[0])], case=str(case))


def test_positions_may_begin_anew_with_each_document(trees: Trees) -> None:
    tag = "core_v0.16.1"
    options: dict[str, Any] = {"mask": "restart", "positions": "learned_absolute"}
    (want,) = run_on_device(trees.pristine(tag), [scenario(**options)])[0]
    chosen = ("p2p", "a2a", "all_gather", "a2a+p2p")
    found = run(trees, tag, [scenario(**options, **CHOICES[name]) for name in chosen], cp=4)
    for name, named in zip(chosen, found, strict=True):
        assert_near(named, want, case=name)


def test_recomputed_and_narrow_models_are_those_of_a_single_rank(trees: Trees) -> None:
    tag = "core_v0.16.1"
    variants: list[dict[str, Any]] = [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "selective"},
    ]
    (want,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    (narrow,) = run_on_device(trees.pristine(tag), [scenario(dtype=torch.bfloat16)])[0]
    chosen = ("p2p", "a2a", "all_gather", "a2a+p2p")
    each = [(name, variant) for name in chosen for variant in variants]
    scenarios = [scenario(**CHOICES[name], **variant) for name, variant in each]
    scenarios += [scenario(dtype=torch.bfloat16, **CHOICES[name]) for name in chosen]
    got = run(trees, tag, scenarios, cp=4)
    for case, found in zip(each, got, strict=False):
        assert_near(found, want, case=str(case))
    for name, found in zip(chosen, got[len(each) :], strict=True):
        for key, x in narrow.items():
            error = (found[key].float() - x.float()).abs().max()
            assert error <= 2.5e-2 * x.float().abs().max(), (name, key)


# Routers of core 0.16.1 name an import that fails without TransformerEngine.
@pytest.mark.parametrize("tag", [tag for tag in COMPARED_RELEASES if tag != "core_v0.16.1"])
def test_experts_are_spread_over_the_same_ranks(trees: Trees, tag: str) -> None:
    experts: dict[str, Any] = {
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall",
        "moe_ffn_hidden_size": 24,
    }
    (want,) = run_on_device(trees.pristine(tag), [scenario(**experts)])[0]
    chosen = ("p2p", "a2a", "all_gather", "a2a+p2p")
    each = [scenario(expert_model_parallel_size=2, **experts, **CHOICES[name]) for name in chosen]
    sizes = {"context_parallel_size": 4, "expert_model_parallel_size": 2}
    by_rank = run_on_device(trees.patched(tag, OVERLAYS), each, world_size=4, sizes=sizes)
    for index, name in enumerate(chosen):
        for found in (by_rank[0][index], by_rank[1][index]):
            assert_near(found, {key: want[key] for key in found}, case=name)
        assert {**by_rank[0][index], **by_rank[1][index]}.keys() == want.keys()


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_latent_attention_with_narrower_values_is_spread(trees: Trees, tag: str) -> None:
    tree = trees.patched(tag, ("base/te", "attention/flash-attention", *OVERLAYS))
    options: dict[str, Any] = {"multi_latent_attention": True, "with_te_names": True}
    (want,) = run_on_device(tree, [scenario(**options)])[0]
    chosen = ("p2p", "a2a", "all_gather", "a2a+p2p")
    each = [scenario(**options, **CHOICES[name]) for name in chosen]
    sizes: dict[str, Any] = {
        "context_parallel_size": 4,
        "hierarchical_context_parallel_sizes": [2, 2],
    }
    found = run_on_device(tree, each, world_size=4, sizes=sizes)[0]
    for name, named in zip(chosen, found, strict=True):
        assert_near(named, want, case=name)


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_packed_sequences_are_documents_told_apart_by_a_mask(trees: Trees, tag: str) -> None:
    (want,) = run_on_device(trees.pristine(tag), [scenario("train_documents")])[0]
    chosen = ("p2p", "a2a", "all_gather", "a2a+p2p")
    options: list[dict[str, Any]]
    options = [{"padded": padded, **CHOICES[n]} for n in chosen for padded in (False, True)]
    scenarios = [scenario("train_packed", **each) for each in options]
    for each, found in zip(options, run(trees, tag, scenarios, cp=4), strict=True):
        assert_near(found, want, case=str(each))


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_layers_with_the_names_of_transformer_engine_are_spread_too(trees: Trees, tag: str) -> None:
    overlays = ("base/te", "attention/flash-attention", *OVERLAYS)
    tree = trees.patched(tag, overlays)
    one = [scenario(with_te_names=True)]
    one += [scenario("train_packed", padded=False, with_te_names=True)]
    want, packed = run_on_device(tree, one)[0]
    sizes: dict[str, Any] = {
        "context_parallel_size": 4,
        "hierarchical_context_parallel_sizes": [2, 2],
    }
    chosen = ("p2p", "a2a", "all_gather", "a2a+p2p")
    each = [scenario(with_te_names=True, **CHOICES[name]) for name in chosen]
    each += [
        scenario("train_packed", padded=padded, with_te_names=True, **CHOICES["p2p"])
        for padded in (False, True)
    ]
    got = run_on_device(tree, each, world_size=4, sizes=sizes)[0]
    for name, found in zip(chosen, got, strict=False):
        assert_near(found, want, case=name)
    for found in got[len(chosen) :]:
        assert_near(found, packed)


@pytest.mark.parametrize("layout", [None, "Ett|L"], ids=["alike", "one without attention"])
def test_pipeline_stages_go_with_it(trees: Trees, layout: str | None) -> None:
    tag = "core_v0.16.1"
    sizes = {"pipeline_model_parallel_size": 2}
    stages = {"pipeline_model_parallel_layout": layout} if layout else {}
    one = [scenario("train_pipeline", **stages)]
    want = run_on_device(trees.pristine(tag), one, world_size=2, sizes=sizes)
    tree = trees.patched(tag, OVERLAYS)
    overlap: dict[str, Any] = {"use_cp_send_recv_overlap": True}  # makes groups, on every stage
    hybrid: dict[str, Any] = {"context_parallel_algo": "hybrid_cp_algo", "ulysses_degree_in_cp": 2}
    for cp, chosen in ((2, (overlap, CHOICES["a2a"])), (4, (hybrid,))):
        each = [scenario("train_pipeline", **stages, **options) for options in chosen]
        more = {**sizes, "context_parallel_size": cp}
        got = run_on_device(tree, each, world_size=2 * cp, sizes=more)
        for rank, results in enumerate(got):
            for found in results:
                assert_near(found, want[rank // cp][0], case=f"{cp}, rank {rank}")


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_without_context_parallelism_nothing_changes(trees: Trees, tag: str) -> None:
    scenarios = [scenario(), scenario(dtype=torch.bfloat16), scenario(attention_dropout=0.2)]
    want = run_on_device(trees.pristine(tag), scenarios)[0]
    got = run_on_device(trees.patched(tag, OVERLAYS), scenarios)[0]
    for found, expected in zip(got, want, strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cp_comm_type": "a2a+p2p"}, "needs --ulysses-degree-in-cp"),
        ({"window_size": (4, 0)}, "a sliding window is not spread over ranks"),
        ({"softmax_type": "off-by-one"}, "a softmax offset is not spread over ranks"),
        ({"context_parallel_algo": "ulysses_cp_algo", "cp_comm_type": "all_gather"}, "disagree"),
        ({"cp_window_size": 3}, "must divide"),
        ({"backend": "unfused"}, "attention_backend=unfused asks for upstream's own attention"),
    ],
)
def test_what_cannot_be_is_refused_by_the_model(
    trees: Trees, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RankError) as caught:
        run(trees, "core_v0.16.1", [scenario(**options)], cp=2)
    assert words in str(caught.value)


def test_one_key_head_is_gathered(trees: Trees) -> None:
    tag = "core_v0.16.1"
    (want,) = run_on_device(trees.pristine(tag), [scenario(num_query_groups=1)])[0]
    options: dict[str, Any] = {"num_query_groups": 1, "context_parallel_algo": "ulysses_cp_algo"}
    options["use_ulysses_allgather_kv"] = True
    policies: tuple[dict[str, Any], ...] = ({}, {"context_parallel_kv_cache_policy": "full"})
    for found in run(trees, tag, [scenario(**options, **more) for more in policies], cp=4):
        assert_near(found, want)


def test_tensor_and_sequence_parallel_ranks_go_with_it(trees: Trees) -> None:
    tag = "core_v0.16.1"
    sizes = {"tensor_model_parallel_size": 2}
    (want,) = run_on_device(trees.pristine(tag), [scenario()], world_size=2, sizes=sizes)[0]
    scenarios = [scenario(sequence_parallel=True, **CHOICES[name]) for name in ("p2p", "a2a")]
    for found in run(trees, tag, scenarios, cp=2, **sizes):
        assert_near(found, want)


@pytest.mark.slow
@pytest.mark.parametrize("cp", [4, 8])
def test_many_ranks_with_tensor_parallel_ones(trees: Trees, cp: int) -> None:
    tag = "core_v0.16.1"
    sizes = {"tensor_model_parallel_size": 2}
    (want,) = run_on_device(trees.pristine(tag), [scenario()], world_size=2, sizes=sizes)[0]
    hybrid: dict[str, Any] = {"context_parallel_algo": "hybrid_cp_algo", "ulysses_degree_in_cp": 2}
    window: dict[str, Any] = {"cp_window_size": 2, "use_cp_send_recv_overlap": True}
    chosen = [CHOICES["p2p"], CHOICES["all_gather"], hybrid, window]
    chosen += [CHOICES["a2a"]] if cp == 4 else []  # each rank has 4 heads
    for parallel in (False, True):
        scenarios = [scenario(sequence_parallel=parallel, **options) for options in chosen]
        for options, found in zip(chosen, run(trees, tag, scenarios, cp=cp, **sizes), strict=True):
            assert_near(found, want, case=str(options))
