"""Context-parallel attention is dense attention: output and gradients, every algorithm."""

from dataclasses import replace

import pytest
import torch

from ascend_sim import ranks
from features.context_parallel.cp_ranks import Case, find_errors

# Largest error relative to the largest element. MindSpeed's own tests allow 5e-3, in bf16 2.5e-2.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2.5e-2}
PACKED = (0, 16, 48, 64)


def check(cases: list[Case], path: str, world_size: int) -> None:
    """Run cases on ranks, all in one call, and compare."""
    npu = any(case.npu for case in cases)
    preload = ranks.DEFAULT_PRELOAD if npu else ("torch",)
    server = ranks.server(path=[path], preload=preload)
    backend = "hccl" if npu else "gloo"
    found = server.run(find_errors, cases, world_size=world_size, backend=backend, timeout_s=200)
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
