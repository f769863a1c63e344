"""The schema lists: the parser, what the lists say, and that they are what torch_npu registers."""

import zipfile
from pathlib import Path

import pytest

from ascend_sim.contract import read_wheel
from ascend_sim.contract.schemas import Argument, parse_schema, release, versions


def test_a_schema_is_read_with_keywords_defaults_and_outputs() -> None:
    schema = parse_schema(
        'npu::f.out(Tensor x, int[2] k=[1, 1], *, str mode="a, b", Tensor(a!)? y=None)'
        " -> (Tensor(a!), Tensor[])"
    )

    assert (schema.namespace, schema.key) == ("npu", "f.out")
    assert schema.arguments == (
        Argument("x", "Tensor"),
        Argument("k", "int[2]", "[1, 1]"),
        Argument("mode", "str", '"a, b"', kwarg_only=True),
        Argument("y", "Tensor(a!)?", "None", kwarg_only=True),
    )
    assert schema.returns == ("Tensor(a!)", "Tensor[]")
    assert [a.name for a in schema.positional] == ["x", "k"]


def test_an_operator_may_return_nothing() -> None:
    assert parse_schema("f(Tensor x) -> ()").returns == ()


@pytest.mark.parametrize("text", ["", "f", "f(Tensor x", "f(Tensor x) Tensor", "1 -> 2"])
def test_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an operator schema"):
        parse_schema(text)


def test_the_lists_cover_the_releases_that_clusters_run() -> None:
    assert versions() == ["2.7.1", "2.9.0", "2.13.0", "2.14.0"]
    assert versions(">=2.9") == ["2.9.0", "2.13.0", "2.14.0"]


def test_a_release_without_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no schema list for torch_npu 2\.0\.0"):
        release("2.0.0")


@pytest.mark.parametrize(
    ("version", "returned"), [("2.7.1", 4), ("2.9.0", 5), ("2.13.0", 5), ("2.14.0", 5)]
)
def test_attention_gradients_count_differs_between_releases(version: str, returned: int) -> None:
    (schema,) = release(version).schemas["npu_fusion_attention_grad"]

    assert len(schema.returns) == returned


@pytest.mark.parametrize("version", ["2.7.1", "2.9.0", "2.13.0", "2.14.0"])
def test_names_of_the_device_module_are_listed(version: str) -> None:
    listed = release(version)

    assert "torch_npu.npu" in listed.modules
    assert {"torch_npu.npu.set_device", "torch_npu.npu.Stream", "torch_npu.Format"} <= listed.names


def test_operators_and_names_are_read_out_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "torch_npu-9.8.7-cp311-cp311-linux_x86_64.whl"
    strings = [
        b"npu_f(Tensor x, int k=1) -> Tensor",
        b"hifloat8",
        b"super_kernel_scope_begin",
        b"ken_f(Tensor x, int num_kensor block) -> (Tensor",  # a fragment, as compilers leave them
        b"k(Nonsense x) -> Tensor",
    ]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch_npu/lib/libtorch_npu.so", b"\0".join([b"\x7fELF", *strings, b""]))
        archive.writestr("torch_npu/__init__.py", "import os\nfrom . import npu\n")
        archive.writestr("torch_npu/npu/__init__.py", "from .streams import *\ndef init(): ...\n")
        archive.writestr("torch_npu/npu/streams.py", "class Stream: ...\n_hidden = 1\n")
        archive.writestr("torch_npu/npu/_format.py", "torch_npu.Format = 3\n")

    made = read_wheel.write_list(wheel, folder=tmp_path).read_text().splitlines()

    assert "op npu::npu_f(Tensor x, int k=1) -> Tensor" in made
    assert [line for line in made if line.startswith("op ")] == [
        "op npu::npu_f(Tensor x, int k=1) -> Tensor"
    ]
    assert "unsigned npu::super_kernel_scope_begin" in made
    assert "names torch_npu Format hifloat8 npu os" in made
    (device,) = [line for line in made if line.startswith("names torch_npu.npu ")]
    assert {"Stream", "init", "streams", "_hidden"} <= set(device.split())
