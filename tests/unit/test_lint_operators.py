"""Operator calls of overlays are held to every torch_npu release that the overlay claims."""

from mindspeed_overlay.lint_operators import lint_operators


def messages(code: str, floor: str = ">=2.7.1") -> list[str]:
    files = {"mindspeed/x.py": f"import torch_npu\n{code}\n".encode(), "mindspeed/t.txt": b"npu"}
    return [p.message for p in lint_operators(files, overlay="a/b", floor=floor)]


def test_a_call_that_every_release_takes_is_fine() -> None:
    assert messages("y = torch_npu.npu_swiglu(x, dim=-1)") == []


def test_an_unknown_keyword_is_named_with_file_line_and_release() -> None:
    found = messages("y = torch_npu.npu_swiglu(x, axis=-1)", floor=">=2.13")
    assert found
    assert all(
        m.startswith("mindspeed/x.py:2: torch_npu.npu_swiglu with torch_npu 2.1") for m in found
    )


def test_a_result_count_that_an_old_release_lacks_needs_a_higher_floor() -> None:
    call = "dq, dk, dv, dpse, dsink = torch_npu.npu_fusion_attention_grad(q, k, v, dy, 4, 'SBH')"
    assert any("torch_npu 2.7.1" in m for m in messages(call))
    assert messages(call, floor=">=2.9.0") == []


def test_a_floor_above_all_lists_is_an_error() -> None:
    assert "admits none" in messages("", floor=">=99")[0]
