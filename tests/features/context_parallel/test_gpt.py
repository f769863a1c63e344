"""A GPT with its sequence spread over ranks trains like one on a single rank."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ascend_sim.ranks import RankError
from features.context_parallel.gpt_choices import (
    ADAPTIVE,
    ADAPTIVE_ALGORITHMS,
    CHOICES,
    EXCHANGES,
    OVERLAYS,
    run,
    scenario,
)
from harness.compare import assert_near, assert_same
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees


def mark_slow(tags: Sequence[str], *, but: str | Sequence[str]) -> list[Any]:
    """All of them as parameters, slow but for some."""
    return [pytest.param(tag, marks=[] if tag in but else pytest.mark.slow) for tag in tags]


def test_ten_steps_of_every_algorithm_are_those_of_a_single_rank(trees: Trees) -> None:
    tag = "core_v0.16.1"
    documents = {"mask": "reset"}
    want, reset = run_on_device(
        trees.pristine(tag), [scenario(steps=10), scenario(steps=10, **documents)]
    )[0]
    chosen = (*EXCHANGES, "ring, double")
    scenarios = [scenario(steps=10, **CHOICES[name]) for name in chosen]
    scenarios += [scenario(steps=10, **documents, **options) for options in ADAPTIVE_ALGORITHMS]
    *got, adaptive, hybrid = run(trees, tag, scenarios, cp=4)
    assert want["losses"][0] > want["losses"][-1]
    for name, found in zip(chosen, got, strict=True):
        assert_near(found, want, case=name)
    assert_near(adaptive, reset)
    assert_near(hybrid, reset)


@pytest.mark.parametrize("tag", mark_slow(COMPARED_RELEASES, but="core_v0.16.1"))
def test_every_setting_trains_like_a_single_rank(trees: Trees, tag: str) -> None:
    (want,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    names = list(CHOICES)
    got = run(trees, tag, [scenario(**CHOICES[name]) for name in names], cp=4)
    for name, found in zip(names, got, strict=True):
        assert_near(found, want, case=name)


@pytest.mark.parametrize("tag", mark_slow(ALL_RELEASES, but=COMPARED_RELEASES))
def test_every_exchange_trains_on_every_release(trees: Trees, tag: str) -> None:
    (want,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    (documents,) = run_on_device(trees.pristine(tag), [scenario("train_documents")])[0]
    chosen = (*EXCHANGES, "each layer")
    each = [scenario(**CHOICES[name]) for name in chosen]
    each += [scenario("train_packed", padded=True, **CHOICES[name]) for name in chosen]
    got = run(trees, tag, each, cp=4)
    for index, name in enumerate(chosen):
        assert_near(got[index], want, case=name)
        assert_near(got[len(chosen) + index], documents, case=f"{name}, packed")


def test_masks_that_come_as_tensors_are_those_of_a_single_rank(trees: Trees) -> None:
    tag = "core_v0.16.1"
    masks = ("reset", "none", "late")
    wants = run_on_device(trees.pristine(tag), [scenario(mask=m) for m in ("reset", "late")])[0]
    (causal,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    expected = {"reset": wants[0], "none": causal, "late": wants[1]}
    each = [scenario(mask=mask, **CHOICES[name]) for mask in masks for name in EXCHANGES]
    each += [scenario(mask="reset", attention_mask_type="causal", **CHOICES["p2p"])]
    *got, ignored = run(trees, tag, each, cp=4)
    for index, found in enumerate(got):
        mask, name = masks[index // len(EXCHANGES)], EXCHANGES[index % len(EXCHANGES)]
        assert_near(found, expected[mask], case=f"{name}, {mask}")
    assert_near(ignored, causal)


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_adaptive_algorithms_train_like_a_single_rank(trees: Trees, tag: str) -> None:
    masks = ("reset", "band", "late")
    wants = run_on_device(trees.pristine(tag), [scenario(mask=mask) for mask in masks])[0]
    each = [(m, a, w) for m in masks for a in ADAPTIVE_ALGORITHMS for w in ADAPTIVE]
    if tag != "core_v0.16.1":
        each = each[::7]
    scenarios = [scenario(mask=m, **a, **ADAPTIVE[w]) for m, a, w in each]
    for case, found in zip(each, run(trees, tag, scenarios, cp=4), strict=True):
        assert_near(found, wants[masks.index(case[0])], case=str(case))


def test_positions_may_begin_anew_with_each_document(trees: Trees) -> None:
    tag = "core_v0.16.1"
    options: dict[str, Any] = {"mask": "restart", "positions": "learned_absolute"}
    (want,) = run_on_device(trees.pristine(tag), [scenario(**options)])[0]
    found = run(trees, tag, [scenario(**options, **CHOICES[name]) for name in EXCHANGES], cp=4)
    for name, named in zip(EXCHANGES, found, strict=True):
        assert_near(named, want, case=name)


def test_recomputed_and_narrow_models_are_those_of_a_single_rank(trees: Trees) -> None:
    tag = "core_v0.16.1"
    variants: list[dict[str, Any]] = [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "selective"},
    ]
    (want,) = run_on_device(trees.pristine(tag), [scenario()])[0]
    (narrow,) = run_on_device(trees.pristine(tag), [scenario(dtype=torch.bfloat16)])[0]
    each = [(name, variant) for name in EXCHANGES for variant in variants]
    scenarios = [scenario(**CHOICES[name], **variant) for name, variant in each]
    scenarios += [scenario(dtype=torch.bfloat16, **CHOICES[name]) for name in EXCHANGES]
    got = run(trees, tag, scenarios, cp=4)
    for case, found in zip(each, got, strict=False):
        assert_near(found, want, case=str(case))
    for name, found in zip(EXCHANGES, got[len(each) :], strict=True):
        for key, x in narrow.items():
            error = (found[key].float() - x.float()).abs().max()
            assert error <= 2.5e-2 * x.float().abs().max(), (name, key)


@pytest.mark.parametrize("tag", mark_slow(COMPARED_RELEASES, but="core_v0.16.1"))
def test_packed_sequences_are_documents_told_apart_by_a_mask(trees: Trees, tag: str) -> None:
    (want,) = run_on_device(trees.pristine(tag), [scenario("train_documents")])[0]
    options: list[dict[str, Any]]
    options = [{"padded": padded, **CHOICES[n]} for n in EXCHANGES for padded in (False, True)]
    scenarios = [scenario("train_packed", **each) for each in options]
    for each, found in zip(options, run(trees, tag, scenarios, cp=4), strict=True):
        assert_near(found, want, case=str(each))


@pytest.mark.parametrize("tag", ALL_RELEASES)
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
