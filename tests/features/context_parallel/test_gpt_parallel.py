"""Context parallelism together with other kinds of parallelism and other layers."""

from typing import Any

import pytest

from features.context_parallel.gpt_choices import (
    CHOICES,
    EXCHANGES,
    OVERLAYS,
    run,
    scenario,
)
from harness.compare import assert_near
from harness.runner import run_on_device
from harness.trees import COMPARED_RELEASES, Trees


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
    each = [
        scenario(expert_model_parallel_size=2, **experts, **CHOICES[name]) for name in EXCHANGES
    ]
    sizes = {"context_parallel_size": 4, "expert_model_parallel_size": 2}
    by_rank = run_on_device(trees.patched(tag, OVERLAYS), each, world_size=4, sizes=sizes)
    for index, name in enumerate(EXCHANGES):
        for found in (by_rank[0][index], by_rank[1][index]):
            assert_near(found, {key: want[key] for key in found}, case=name)
        assert {**by_rank[0][index], **by_rank[1][index]}.keys() == want.keys()


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_latent_attention_with_narrower_values_is_spread(trees: Trees, tag: str) -> None:
    tree = trees.patched(tag, ("base/te", "attention/flash-attention", *OVERLAYS))
    options: dict[str, Any] = {"multi_latent_attention": True, "with_te_names": True}
    (want,) = run_on_device(tree, [scenario(**options)])[0]
    each = [scenario(**options, **CHOICES[name]) for name in EXCHANGES]
    sizes: dict[str, Any] = {
        "context_parallel_size": 4,
        "hierarchical_context_parallel_sizes": [2, 2],
    }
    found = run_on_device(tree, each, world_size=4, sizes=sizes)[0]
    for name, named in zip(EXCHANGES, found, strict=True):
        assert_near(named, want, case=name)


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
    each = [scenario(with_te_names=True, **CHOICES[name]) for name in EXCHANGES]
    each += [
        scenario("train_packed", padded=padded, with_te_names=True, **CHOICES["p2p"])
        for padded in (False, True)
    ]
    got = run_on_device(tree, each, world_size=4, sizes=sizes)[0]
    for name, found in zip(EXCHANGES, got, strict=False):
        assert_near(found, want, case=name)
    for found in got[len(EXCHANGES) :]:
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
