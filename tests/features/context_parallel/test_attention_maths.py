"""Context-parallel attention is dense attention: output and gradients, every algorithm."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from ascend_sim import ranks
from features.context_parallel.cp_case import Case
from features.context_parallel.cp_ranks import find_errors

# Largest error relative to the largest element. MindSpeed's own tests allow 5e-3, in bf16 2.5e-2.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2.5e-2}
PACKED = (0, 16, 48, 64)


def check(cases: list[Case], path: str, world_size: int) -> None:
    """Run cases on ranks, all in one call, and compare."""
    npu = any(case.npu for case in cases)
    preload = ranks.DEFAULT_PRELOAD if npu else ("torch",)
    server = ranks.server(path=[path], preload=preload)
    backend = "hccl" if npu else "gloo"
    found = server.run(find_errors, cases, world_size=world_size, backend=backend, timeout_s=280)
    bad = [
        f"{case} on rank {rank}: {errors}"
        for rank, results in enumerate(found)
        for case, errors in zip(cases, results, strict=True)
        if max(errors.values()) > TOLERANCES[case.dtype]
    ]
    assert not bad, "\n".join(bad)


ALGORITHMS = ("ring", "ulysses", "kv_allgather", "hybrid")


def make_cases(base: Case, *, world_size: int) -> list[Case]:
    """Masks, layouts, head counts and widths of one algorithm."""
    packed = replace(base, length=64, batch=1, starts=PACKED)
    cases = [
        base,
        replace(base, mask="full"),
        replace(base, key_heads=8),
        replace(base, key_heads=1, value_width=8),
        packed,
        replace(packed, mask="full"),
    ]
    if base.algorithm != "hybrid":
        cases += [replace(base, mask="given"), replace(base, bnsd=True)]
    return cases


@pytest.mark.parametrize("world_size", [2, 4])
def test_algorithms_are_dense_attention(mindspeed_path: str, world_size: int) -> None:
    cases = []
    for algorithm in ALGORITHMS:
        cases += make_cases(Case(algorithm), world_size=world_size)
    cases += [replace(Case("double_ring"), mask=m, window=2) for m in ("causal", "full", "given")]
    cases += [replace(Case(a), keep=k) for a in ("ring", "kv_allgather") for k in ("half", "full")]
    cases += [replace(Case("double_ring"), window=2, lanes=4), replace(Case("ring"), lanes=2)]
    check(cases, mindspeed_path, world_size)


@pytest.mark.parametrize("world_size", [3, 4])
def test_algorithms_are_dense_attention_on_the_device(mindspeed_path: str, world_size: int) -> None:
    names = [name for name in ALGORITHMS if world_size == 4 or name in ("ring", "kv_allgather")]
    cases = []
    for algorithm in names:
        base = Case(algorithm, npu=True, length=48, starts=())
        packed = replace(base, length=72, batch=1, starts=(0, 24, 72))
        if world_size == 4:
            packed = replace(base, length=64, batch=1, starts=PACKED)
        cases += [
            replace(base, dtype=torch.bfloat16),
            replace(packed, dtype=torch.bfloat16),
            replace(base, key_heads=2, value_width=8, bnsd=world_size == 3),
            packed,
        ]
        if algorithm in ("ring", "kv_allgather"):
            cases.append(replace(base, mask="given"))
    wide = replace(packed, width=64, value_width=64, algorithm="ring")
    cases += [
        Case("ring", npu=True, length=48, fused_merge=True),
        replace(wide, fused_merge=True),
        Case("ring", npu=True, length=48, lanes=2, keep="half", dtype=torch.bfloat16),
    ]
    check(cases, mindspeed_path, world_size)


def test_rows_may_be_uneven_where_the_algorithm_allows(mindspeed_path: str) -> None:
    cases = []
    for uneven in ((5, 3, 9, 6), (1, 12, 2, 4)):
        base = Case("ring", mask="full", length=sum(uneven), uneven=uneven)
        algorithms = ("ring", "ulysses", "kv_allgather")
        cases += [replace(base, algorithm=a, mask=m) for a in algorithms for m in ("full", "given")]
        cases.append(replace(base, mask="given", keep="half"))
        cases.append(replace(base, algorithm="ulysses", mask="causal"))
    check(cases, mindspeed_path, 4)


def test_functions_for_uneven_rows_are_dense_attention(mindspeed_path: str) -> None:
    base = Case("uneven_ring", npu=True, mask="full", length=23, uneven=(5, 3, 9, 6))
    cases = [replace(base, mask=mask) for mask in ("full", "given")]
    ulysses = replace(base, algorithm="uneven_ulysses", dtype=torch.bfloat16)
    cases += [replace(ulysses, mask=mask) for mask in ("full", "causal", "given")]
    check(cases, mindspeed_path, 4)


def test_dropout_is_that_of_the_dense_attention_with_the_same_masks(mindspeed_path: str) -> None:
    names = ("ring", "ulysses", "kv_allgather", "hybrid")
    base = Case("ring", npu=True, dropout=0.3, batch=1)
    cases = [replace(base, algorithm=name) for name in names]
    cases += [replace(base, mask="full"), replace(base, fused_merge=True, key_heads=8)]
    check(cases, mindspeed_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("npu", [False, True])
def test_the_whole_matrix_is_dense_attention(
    mindspeed_path: str, world_size: int, npu: bool
) -> None:
    dtypes = (torch.float32, torch.bfloat16) if npu else (torch.float32,)
    cases = []
    for dtype, algorithm in itertools.product(dtypes, (*ALGORITHMS, "double_ring")):
        if algorithm == "double_ring" and world_size == 2:
            continue
        base = Case(algorithm, npu=npu, dtype=dtype, length=64, batch=1)
        base = replace(base, window=2) if algorithm == "double_ring" else base
        packed = replace(base, length=96, starts=(0, 16, 64, 96))
        masks = ("causal", "full", "given") if algorithm != "hybrid" else ("causal", "full")
        heads: tuple[dict[str, Any], ...] = ({}, {"key_heads": 8}, {"key_heads": 1})
        heads += ({"value_width": 8, "key_heads": 2},)
        cases += [replace(base, mask=m, **h) for m, h in itertools.product(masks, heads)]
        cases += [replace(packed, mask=m) for m in ("causal", "full")]
        if algorithm not in ("hybrid", "ulysses"):
            kept = itertools.product(("causal", "full"), ("half", "full"))
            cases += [replace(base, mask=m, keep=keep) for m, keep in kept]
        if algorithm != "hybrid":
            cases += [replace(base, mask=m, bnsd=True) for m in ("causal", "full")]
    check(cases, mindspeed_path, world_size)
