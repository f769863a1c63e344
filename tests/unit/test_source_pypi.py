"""Official wheels through the user's own pip. These run the real pip on a folder of wheels."""

import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from builders import (
    CORE,
    HELPERS,
    LICENSE,
    VERSION,
    X86_311,
    Upstream,
    make_release,
    make_upstream,
    make_wheel,
    stock_cache,
    use_links,
)
from mindspeed_overlay.errors import MissingError, SourceError, UsageError
from mindspeed_overlay.pins import OtherDigest, Wheel, load_pins
from mindspeed_overlay.source import Source, open_source
from mindspeed_overlay.source.pypi import choose_wheel, expand_platform
from mindspeed_overlay.tree import source_digest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    made = make_upstream(tmp_path)
    use_links(monkeypatch, made.links)
    monkeypatch.setenv("MINDSPEED_OVERLAY_CACHE", str(tmp_path / "cache"))
    return made


@pytest.fixture
def stocked(upstream: Upstream, tmp_path: Path) -> Upstream:
    """An upstream whose wheels are in the cache already: no pip is needed."""
    stock_cache(upstream, tmp_path / "cache")
    return upstream


def open_x86(upstream: Upstream, *, offline: bool = False) -> Source:
    return open_source(
        upstream.release, python="3.11", platform="manylinux_2_28_x86_64", offline=offline
    )


def test_the_wheel_for_the_target_is_brought_and_verified(upstream: Upstream) -> None:
    source = open_x86(upstream)
    assert source.files == {**CORE, HELPERS: f"ELF {X86_311}".encode()}
    assert source.tags == (
        "cp311-cp311-manylinux_2_24_x86_64",
        "cp311-cp311-manylinux_2_28_x86_64",
    )
    assert source.wheel.read_bytes() == (upstream.links / source.wheel.name).read_bytes()
    assert source.license_text == LICENSE
    assert (source.tree, source.notes) == ("core", ())
    assert source.digest == upstream.release.source_digest


def test_pip_is_not_started_for_what_the_cache_has(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_x86(upstream)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert open_x86(upstream) == open_x86(upstream, offline=True) == first


def test_offline_names_the_missing_wheel_and_the_command_that_brings_it(upstream: Upstream) -> None:
    with pytest.raises(MissingError, match=r"E801.*x86_64\.whl(.|\n)*pin verify core_v0\.1\.0"):
        open_x86(upstream, offline=True)


def test_a_rotted_wheel_in_the_cache_is_brought_again(upstream: Upstream) -> None:
    wheel = open_x86(upstream).wheel
    wheel.write_bytes(b"rot")
    assert open_x86(upstream).files[HELPERS] == f"ELF {X86_311}".encode()


def test_another_platform_is_looked_up_in_one_call(upstream: Upstream) -> None:
    source = open_source(upstream.release, python="3.12", platform="linux_aarch64")
    assert source.tags[0] == "cp312-cp312-manylinux_2_24_aarch64"
    compiled = [path for path in source.files if path.endswith(".so")]
    assert compiled == ["megatron/core/datasets/helpers_cpp.cpython-312-aarch64-linux-gnu.so"]


@pytest.mark.parametrize(
    ("python", "platform"),
    [("3.13", "linux_x86_64"), ("3.11", "win_amd64"), ("3.11", "manylinux_2_17_x86_64")],
)
def test_a_target_without_a_wheel_gets_the_files_and_a_note(
    stocked: Upstream, python: str, platform: str
) -> None:
    source = open_source(stocked.release, python=python, platform=platform)
    assert source.files == CORE
    assert source.tags == ("py3-none-any",)
    assert "no official wheel for this Python and platform" in source.notes[0]


def test_the_files_without_extension_stem_from_one_wheel_whatever_is_cached(
    stocked: Upstream,
) -> None:
    open_source(stocked.release, python="3.12", platform="linux_aarch64")
    source = open_source(stocked.release, python="3.13", platform="linux_aarch64")
    assert source.wheel.name == stocked.release.wheels[0].filename


def test_a_python_outside_the_floor_is_refused_and_the_existing_ones_listed(
    upstream: Upstream,
) -> None:
    for python in ("3.9", "2.7", "three", "3"):
        with pytest.raises(SourceError, match=r"E305.*>=3\.10(.|\n)*3\.11, 3\.12"):
            open_source(upstream.release, python=python)


def test_a_wheel_of_other_bytes_is_refused(upstream: Upstream) -> None:
    make_wheel(upstream.links, extra={"megatron/core/evil.py": b"x"})
    with pytest.raises(SourceError, match="E311") as caught:
        open_x86(upstream)
    assert upstream.release.wheels[0].filename in str(caught.value)
    with pytest.raises(MissingError, match="E801"):
        open_x86(upstream, offline=True)


def test_a_wheel_that_no_index_has_is_reported_with_what_pip_said(upstream: Upstream) -> None:
    for path in upstream.links.iterdir():
        path.unlink()
    with pytest.raises(MissingError, match=r"E802.*No matching distribution(.|\n)*pip config list"):
        open_x86(upstream)


def test_a_pinned_wheel_whose_files_are_not_the_release_is_refused(
    upstream: Upstream, tmp_path: Path
) -> None:
    files = {**CORE, "megatron/core/new.py": b"x = 1\n"}
    release = make_release([make_wheel(upstream.links, files=files)])
    changed = replace(upstream, release=release)
    stock_cache(changed, tmp_path / "cache")
    digest = source_digest(files, training=False)
    with pytest.raises(SourceError, match=f"E315.*source digest {digest}, pinned"):
        open_x86(changed)
    other = (OtherDigest("pypi", digest, "a file more"),)
    source = open_x86(replace(changed, release=replace(release, other_digests=other)))
    assert source.digest == digest


def test_a_pinned_wheel_with_a_foreign_file_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    release = make_release([make_wheel(upstream.links, extra={"megatron/core/x.so": b"ELF"})])
    hostile = replace(upstream, release=release)
    stock_cache(hostile, tmp_path / "cache")
    with pytest.raises(SourceError, match=r"E314.*foreign native file 'megatron/core/x\.so'"):
        open_x86(hostile)


def test_a_yanked_release_is_used_when_named_and_says_so(stocked: Upstream) -> None:
    yanked = replace(stocked, release=replace(stocked.release, yanked="wrong version"))
    assert "was yanked by its publisher: wrong version" in open_x86(yanked).notes[0]


def test_a_release_without_a_licence_says_so(stocked: Upstream) -> None:
    source = open_x86(replace(stocked, release=replace(stocked.release, license="")))
    assert source.license_text == b""
    assert "carries a licence text" in source.notes[0]


def test_a_licence_that_no_source_has_is_refused(stocked: Upstream) -> None:
    with pytest.raises(SourceError, match="E321"):
        open_x86(replace(stocked, release=replace(stocked.release, license="0" * 64)))


def test_the_users_pip_configuration_is_honoured(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_links(monkeypatch, None)
    monkeypatch.delenv("PIP_NO_INDEX")
    text = f"[global]\nno-index = true\nfind-links = {upstream.links}\nno-binary = :all:\n"
    (tmp_path / "pip.conf").write_text(text)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert open_x86(upstream).files.keys() == {*CORE, HELPERS}


def test_a_pip_module_in_the_working_directory_is_not_run(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('a stray pip')")
    monkeypatch.chdir(tmp_path)
    assert open_x86(upstream).files.keys() == {*CORE, HELPERS}


def test_two_processes_at_once_both_get_the_wheel(upstream: Upstream, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path\n"
        "from builders import make_release\n"
        "from mindspeed_overlay.source import open_source\n"
        "wheel = next(Path(sys.argv[3]).glob('*x86_64.whl'))\n"
        "release = make_release([wheel])\n"
        "print(len(open_source(release, python='3.11', platform='linux_x86_64').files))\n"
    )
    command = [sys.executable, "-c", code, str(ROOT / "tools"), str(ROOT / "tests")]
    runs = [
        subprocess.Popen([*command, str(upstream.links)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [run.communicate(timeout=120)[0].strip() for run in runs]
    assert outputs == [str(len(CORE) + 1)] * 2
    assert not list((tmp_path / "cache" / "tmp").iterdir())


@pytest.mark.parametrize("spec", ["pypi:x", "git:", "dir", "dir:", "svn:x", "", "PYPI"])
def test_an_unknown_source_is_a_usage_error(upstream: Upstream, spec: str) -> None:
    with pytest.raises(UsageError, match="E201"):
        open_source(upstream.release, spec=spec)


def test_the_full_tree_needs_git(upstream: Upstream) -> None:
    with pytest.raises(UsageError, match=r"E201.*--tree full needs --source git"):
        open_source(upstream.release, tree="full")
    with pytest.raises(UsageError, match="E201"):
        open_source(upstream.release, tree="half")


@pytest.mark.parametrize(
    ("platform", "first"),
    [
        (
            "manylinux_2_6_x86_64",
            ["manylinux_2_6_x86_64", "manylinux_2_5_x86_64", "manylinux1_x86_64"],
        ),
        ("manylinux2014_aarch64", ["manylinux_2_17_aarch64", "manylinux2014_aarch64"]),
        ("musllinux_1_1_x86_64", ["musllinux_1_1_x86_64", "musllinux_1_0_x86_64", "linux_x86_64"]),
        ("win-amd64", ["win_amd64"]),
        ("macosx-11.0-arm64", ["macosx_11_0_arm64"]),
    ],
)
def test_a_platform_expands_to_what_runs_on_it(platform: str, first: list[str]) -> None:
    assert list(islice(expand_platform(platform), len(first))) == first


def test_linux_means_every_glibc() -> None:
    tags = set(expand_platform("linux_aarch64"))
    assert {"manylinux_2_17_aarch64", "manylinux_2_39_aarch64", "manylinux2014_aarch64"} <= tags
    assert not any("x86_64" in tag for tag in tags)


def test_the_running_python_and_platform_are_the_default() -> None:
    here = next(iter(expand_platform(None)))
    python = f"cp3{sys.version_info[1]}"
    wheel = Wheel(f"megatron_core-{VERSION}-{python}-{python}-{here}.whl", "0" * 64)
    other = Wheel(f"megatron_core-{VERSION}-{python}-{python}-win_arm64.whl", "1" * 64)
    release = replace(make_release([]), wheels=(other, wheel))
    assert choose_wheel(release) == wheel


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_shipped_release_serves_both_architectures(machine: str) -> None:
    for release in load_pins(ROOT / "megatron_pin.txt").releases:
        wheel = choose_wheel(
            release, python=release.python.removeprefix(">="), platform=f"linux_{machine}"
        )
        assert wheel is not None
        assert machine in wheel.filename


def test_importing_the_sources_starts_nothing_heavy() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r})\n"
        "import mindspeed_overlay.source, mindspeed_overlay.pins\n"
        "heavy = {'git', 'pip', 'rich', 'packaging', 'filelock', 'platformdirs', 'subprocess'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.network
def test_the_default_release_comes_from_the_index_for_a_foreign_target(tmp_path: Path) -> None:
    release = load_pins(ROOT / "megatron_pin.txt").default
    source = open_source(
        release, python="3.10", platform="linux_aarch64", cache_dir=tmp_path / "cache"
    )
    assert source.digest == release.source_digest
    assert source.tags[-1] == "cp310-cp310-manylinux_2_28_aarch64"
    assert [path for path in source.files if path.endswith(".so")] == [
        "megatron/core/datasets/helpers_cpp.cpython-310-aarch64-linux-gnu.so"
    ]
