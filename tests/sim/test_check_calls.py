"""check-calls: every way that a use of torch_npu can fail to fit, and those that fit."""

import json
from pathlib import Path

import pytest

from ascend_sim.contract.check_calls import check, judge_all, main, read_uses
from ascend_sim.contract.schemas import release

HEADER = "import torch, torch_npu\n"


def messages(source: str, *, version: str = "2.13.0") -> list[str]:
    found = judge_all(read_uses(HEADER + source), path="m.py", against=release(version))
    return [f"{finding.name}: {finding.message}" for finding in found]


@pytest.mark.parametrize(
    "source",
    [
        "torch_npu.npu_swiglu(x)",
        "torch_npu.npu_swiglu(x, dim=-1)",
        "torch.ops.npu.npu_swiglu(x, -1)",
        "torch.ops.npu.npu_swiglu.default(x)",
        "torch_npu.npu_rms_norm(x, w, epsilon=1e-5)[0]",
        "torch_npu.npu_rms_norm(x, w)[-2]",
        "y, rstd = torch_npu.npu_rms_norm(x, w)",
        "y, *rest = torch_npu.npu_rms_norm(x, w)",
        "torch_npu.npu_fusion_attention(*arguments, **options)",
        "torch.npu.set_device(0); torch.npu.amp.autocast()",
        "torch_npu.Format.ND; torch_npu.npu.Stream.wait_event",
        "kernel = torch_npu.npu_swiglu",
        "torch_npu._C._whatever()",
        "if hasattr(torch_npu, 'npu_from_next_year'):\n    torch_npu.npu_from_next_year(x)",
        "torch.nothing_of_ours(1)",
        "import numpy as torch_npu2\ntorch_npu2.npu_nothing()",
        "x.npu().npu_nothing()",
    ],
)
def test_uses_that_fit_have_no_finding(source: str) -> None:
    assert messages(source) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("torch_npu.npu_swigloo(x)", "torch_npu.npu_swigloo: no such name"),
        ("torch.ops.npu.npu_swigloo(x)", "torch.ops.npu.npu_swigloo: no such operator"),
        ("torch.npu.set_devices(0)", "torch_npu.npu.set_devices: no such name"),
        ("torch.npu.amp.autocasting()", "torch_npu.npu.amp.autocasting: no such name"),
        ("torch_npu.npu_swiglu()", "torch_npu.npu_swiglu: missing 'input'"),
        (
            "torch_npu.npu_swiglu(x, 1, 2)",
            "torch_npu.npu_swiglu: 3 positional arguments, 2 allowed",
        ),
        ("torch_npu.npu_swiglu(x, axis=1)", "torch_npu.npu_swiglu: no argument 'axis'"),
        ("torch_npu.npu_swiglu(x, input=x)", "torch_npu.npu_swiglu: argument 'input' given twice"),
        (
            "torch_npu.npu_swiglu(x, dim='last')",
            "torch_npu.npu_swiglu: argument 'dim' is int, not 'last'",
        ),
        (
            "torch_npu.npu_swiglu(None)",
            "torch_npu.npu_swiglu: argument 'input' is Tensor, not None",
        ),
        (
            "y = torch_npu.npu_rms_norm(x, w)[2]",
            "torch_npu.npu_rms_norm: returns 2 values, value 2 is taken",
        ),
        (
            "a, b, c = torch_npu.npu_rms_norm(x, w)",
            "torch_npu.npu_rms_norm: returns 2 values, unpacked into 3",
        ),
        ("torch.ops.npu.npu_swiglu.out(x)", "torch.ops.npu.npu_swiglu.out: no overload out"),
        ("import torch_npu as tn\ntn.npu_swiglu()", "torch_npu.npu_swiglu: missing 'input'"),
        (
            "from torch_npu import npu_swiglu as f\nf()",
            "torch_npu.npu_swiglu: missing 'input'",
        ),
        ("from torch_npu import npu_swigloo", "torch_npu.npu_swigloo: no such name"),
        ("import torch.npu as n\nn.set_devices()", "torch_npu.npu.set_devices: no such name"),
        (
            "if hasattr(torch_npu, 'npu_other'):\n    torch_npu.npu_swigloo(x)",
            "torch_npu.npu_swigloo: no such name",
        ),
    ],
)
def test_uses_that_do_not_fit_are_found(source: str, expected: str) -> None:
    assert messages(source) == [expected]


def test_an_operator_with_overloads_fits_if_one_does() -> None:
    overloads = release("2.13.0").schemas["npu_format_cast"]
    assert len(overloads) > 1

    assert messages("torch_npu.npu_format_cast(x, 29)") == []
    assert "fits no overload" in messages("torch_npu.npu_format_cast(x, 29, 1, 2, 3, 4)")[0]


def test_gradient_counts_are_checked_against_the_floor(tmp_path: Path) -> None:
    call = "torch_npu.npu_fusion_attention_grad(q, k, v, g, 8, 'SBH')"
    (tmp_path / "attention.py").write_text(f"{HEADER}dq, dk, dv, dpse, dsink = {call}\n")

    assert check(tmp_path, version=">=2.9") == []
    (finding,) = check(tmp_path, version=">=2.7.1")
    assert finding.versions == ("2.7.1",)
    assert finding.message == "returns 4 values, unpacked into 5"
    assert str(finding).startswith("attention.py:2: torch_npu.npu_fusion_attention_grad: ")


def test_a_floor_above_every_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no schema list satisfies"):
        check(tmp_path, version=">=99")


def test_a_file_that_does_not_parse_is_left_to_the_gate() -> None:
    assert messages("torch_npu.npu_swigloo(") == []


def test_the_command_prints_findings_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.py").write_text(f"{HEADER}torch_npu.npu_swiglu(x)\n")
    assert main([str(tmp_path)]) == 0

    (tmp_path / "bad.py").write_text(f"{HEADER}torch_npu.npu_swigloo(x)\n")
    capsys.readouterr()
    assert main(["--json", "--version", "2.14.0", str(tmp_path)]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["path"], found["line"], found["versions"]) == ("bad.py", 2, ["2.14.0"])

    assert main([]) == 2
