"""An unpacked tree as a source: what the digest covers counts, the rest is left alone."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from builders import CORE, HELPERS, REPOSITORY, Upstream, make_upstream, stock_cache, use_links
from mindspeed_overlay.errors import SourceError
from mindspeed_overlay.source import Source, open_source
from mindspeed_overlay.source.folder import read_folder


def write_tree(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    made = make_upstream(tmp_path)
    stock_cache(made, tmp_path / "cache")
    use_links(monkeypatch, None)
    monkeypatch.setenv("MINDSPEED_OVERLAY_CACHE", str(tmp_path / "cache"))
    return made


def open_folder(upstream: Upstream, root: Path) -> Source:
    return open_source(
        upstream.release, spec=f"dir:{root}", python="3.11", platform="linux_x86_64", offline=True
    )


def test_a_checkout_serves_with_the_helpers_of_the_wheel(
    upstream: Upstream, tmp_path: Path
) -> None:
    clutter = {"megatron/core/__pycache__/x.pyc": b"", "megatron/core/helpers.so": b"ELF"}
    source = open_folder(upstream, write_tree(tmp_path / "tree", {**REPOSITORY, **clutter}))
    assert source.files.keys() == {*CORE, HELPERS}
    assert source.files[HELPERS].startswith(b"ELF cp311")
    assert source.digest == upstream.release.source_digest


def test_a_tree_of_linked_files_serves(upstream: Upstream, tmp_path: Path) -> None:
    """As site-packages that an installer filled with symlinks."""
    store = write_tree(tmp_path / "store", CORE)
    for name in CORE:
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).symlink_to(store / name)
    assert open_folder(upstream, tmp_path / "site").files.keys() == {*CORE, HELPERS}


def test_what_differs_from_the_wheel_is_named(upstream: Upstream, tmp_path: Path) -> None:
    files = {**CORE, "megatron/core/README.md": b"# Other\n", "megatron/core/new.py": b""}
    del files["megatron/core/transformer/mlp.py"]
    with pytest.raises(SourceError, match="E315") as caught:
        open_folder(upstream, write_tree(tmp_path / "tree", files))
    said = (
        "extra megatron/core/new.py, missing megatron/core/transformer/mlp.py, "
        "changed megatron/core/README.md"
    )
    assert said in str(caught.value)


def test_many_differences_are_cut_short(upstream: Upstream, tmp_path: Path) -> None:
    files = {**CORE, **{f"megatron/core/new{n}.py": b"" for n in range(13)}}
    with pytest.raises(SourceError, match="and 3 more"):
        open_folder(upstream, write_tree(tmp_path / "tree", files))


def test_training_counts_only_where_the_distribution_carries_it(tmp_path: Path) -> None:
    root = write_tree(tmp_path, REPOSITORY)
    assert read_folder(root, training=False) == CORE
    extra = {"megatron/training/training.py": REPOSITORY["megatron/training/training.py"]}
    assert read_folder(root, training=True) == {**CORE, **extra}


def test_a_folder_without_megatron_is_refused(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(SourceError, match=r"E319.*has no megatron/core"):
            read_folder(root, training=False)
