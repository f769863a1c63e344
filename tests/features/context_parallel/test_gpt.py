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
    (documents,) = run_on_device(trees.pristine(tag), [scenario(mask="reset")])[0]
    (causal,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    scenarios = [scenario(mask="reset", **CHOICES[name]) for name in chosen]
    scenarios += [scenario(mask="none", **CHOICES[name]) for name in chosen]
    scenarios += [scenario(mask="reset", attention_mask_type="causal", **CHOICES["p2p"])]
    adaptive: dict[str, Any]
    adaptive = {"context_parallel_algo": "adaptive_cp_algo", "adaptive_cp_only_reschedule": True}
    hybrid = adaptive | {"context_parallel_algo": "hybrid_adaptive_cp_algo"}
    scenarios += [
        scenario(mask="reset", **adaptive),
        scenario(mask="reset", ulysses_degree_in_cp=2, **hybrid),
    ]
    *got, ignored, pruned, pruned_hybrid = run(trees, tag, scenarios, cp=4)
    assert_near(pruned, documents)
    assert_near(pruned_hybrid, documents)
    for index, name in enumerate(chosen):
        assert_near(got[index], documents, case=f"{name}, documents")
        assert_near(got[len(chosen) + index], causal, case=f"{name}, no mask")
    assert_near(ignored, causal)


def test_recomputed_and_narrow_models_are_those_of_a_single_rank(trees: Trees) -> None:
    tag = "core_v0.16.1"
    variants: list[dict[str, Any]] = [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "selective"},
    ]
    (want,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    (narrow,) = run_on_device(trees.pristine(tag), [scenario(dtype=torch.bfloat16)])[0]
    scenarios = [scenario(**CHOICES["a2a+p2p"], **variant) for variant in variants]
    scenarios.append(scenario(dtype=torch.bfloat16, **CHOICES["p2p"]))
    *got, got_narrow = run(trees, tag, scenarios, cp=4)
    for found in got:
        assert_near(found, want)
    for name, x in narrow.items():
        error = (got_narrow[name].float() - x.float()).abs().max()
        assert error <= 2.5e-2 * x.float().abs().max(), name


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


def test_pipeline_stages_go_with_it(trees: Trees) -> None:
    tag = "core_v0.16.1"
    sizes = {"pipeline_model_parallel_size": 2}
    one = [scenario("train_pipeline")]
    want = run_on_device(trees.pristine(tag), one, world_size=2, sizes=sizes)
    tree = trees.patched(tag, OVERLAYS)
    overlap: dict[str, Any] = {"use_cp_send_recv_overlap": True}  # makes groups, on every stage
    each = [scenario("train_pipeline", **o) for o in (overlap, CHOICES["a2a"])]
    sizes = {**sizes, "context_parallel_size": 2}
    got = run_on_device(tree, each, world_size=4, sizes=sizes)
    for rank, results in enumerate(got):
        for found in results:
            assert_near(found, want[rank // 2][0], case=f"rank {rank}")


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
