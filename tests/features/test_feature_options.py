"""Options of the attention and fusion features, on every release, without an NPU."""

from typing import Any

import pytest

from features.cases import OVERLAYS
from features.option_checks import FLAGS
from harness.runner import run_on_cpu
from harness.trees import ALL_RELEASES, Trees

CHECKS = "features.option_checks"


@pytest.mark.parametrize("tag", ALL_RELEASES)
def test_impossible_configs_are_refused_and_so_is_a_machine_without_npu(
    trees: Trees, tag: str
) -> None:
    tree = trees.patched(tag, OVERLAYS)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        (f"{CHECKS}:build_without_npu", ()),
        (f"{CHECKS}:find_unrefused_configs", ()),
    ]
    has_parser = tree.joinpath("megatron", "training").is_dir()  # PyPI has it from 0.17 on
    if has_parser:
        calls.append((f"{CHECKS}:parse_flags", ([*FLAGS, "--sparse-mode", "2"],)))
        calls.append((f"{CHECKS}:parse_flags", ([],)))
    said, unrefused, *parsed = run_on_cpu([tree], *calls)
    for flag, message in zip(FLAGS, said, strict=True):
        assert message.startswith(flag)
        assert "torch_npu" in message
    assert unrefused == []
    expected = [[True, True, True, 2], [False, False, False, 0]]
    assert parsed == (expected if has_parser else [])


def test_the_parser_takes_alibi_beside_upstreams_position_embeddings(trees: Trees) -> None:
    tree = trees.patched("core_v0.19.0", ("attention/alibi",))
    name = f"{CHECKS}:parse_position_embedding"
    assert run_on_cpu([tree], (name, ("alibi",)), (name, ("rope",))) == ["alibi", "rope"]
