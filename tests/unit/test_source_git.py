"""Pinned commits from real repositories: local, bare, shallow, over file:// and a git daemon."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from builders import (
    CORE,
    HELPERS,
    LICENSE,
    REPOSITORY,
    TAG,
    Upstream,
    commit_files,
    make_upstream,
    run_git,
    stock_cache,
    tree_digest,
    use_links,
)
from mindspeed_overlay.errors import MissingError, SourceError
from mindspeed_overlay.pins import OtherDigest
from mindspeed_overlay.source import Source, open_source
from mindspeed_overlay.source.transport import NVIDIA_URL, check_url, hide_password
from mindspeed_overlay.tree import sha256


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def upstream(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    """A release in a repository that has moved on since; its wheels are in the cache."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    made = make_upstream(tmp_path)
    stock_cache(made, cache)
    use_links(monkeypatch, None)
    monkeypatch.setenv("MINDSPEED_OVERLAY_CACHE", str(cache))
    commit_files(made.repository, {"megatron/core/later.py": b"x = 1\n"})
    return made


@pytest.fixture
def user_config(tmp_path: Path, upstream: Upstream) -> Path:
    """The user's git configuration file."""
    return tmp_path / "gitconfig"


def open_git(
    upstream: Upstream, where: object = "", *, tree: str = "core", offline: bool = False
) -> Source:
    return open_source(
        upstream.release,
        spec=f"git:{where or upstream.repository}",
        tree=tree,
        python="3.11",
        platform="linux_x86_64",
        offline=offline,
    )


def check_core(source: Source) -> None:
    native = {path: data for path, data in source.files.items() if path.endswith(".so")}
    assert source.files == {**CORE, **native}
    assert list(native) == [HELPERS]
    assert source.license_text == LICENSE
    assert source.notes == ()


def count_cached_commits(cache: Path, upstream: Upstream) -> int:
    repository = cache / "git" / upstream.release.commit
    return int(run_git(repository, "rev-list", "--count", upstream.release.commit))


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """A git daemon on loopback that exports what is below `folder`; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = ["git", "daemon", "--export-all", "--reuseaddr", "--verbose"]
    command += [
        "--log-destination=stderr",
        f"--base-path={folder}",
        "--listen=127.0.0.1",
        f"--port={port}",
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean) as daemon:
        assert daemon.stderr is not None
        try:
            for line in daemon.stderr:
                if "Ready to rumble" in line:
                    break
            yield f"git://127.0.0.1:{port}"
        finally:
            daemon.terminate()


def test_a_working_repository_gives_the_pinned_commit(upstream: Upstream, cache: Path) -> None:
    source = open_git(upstream)
    check_core(source)
    assert source.tags[0].startswith("cp311-")
    assert upstream.release.commit in source.origin
    assert count_cached_commits(cache, upstream) == 1


def test_a_bare_repository_over_file_serves(upstream: Upstream, tmp_path: Path) -> None:
    run_git(tmp_path, "clone", "-q", "--bare", str(upstream.repository), "bare.git")
    check_core(open_git(upstream, f"file://{tmp_path / 'bare.git'}"))


def test_a_git_daemon_serves(upstream: Upstream, cache: Path) -> None:
    with serve(upstream.repository.parent) as address:
        check_core(open_git(upstream, f"{address}/upstream"))
    assert count_cached_commits(cache, upstream) == 1


def test_a_server_that_refuses_bare_commits_is_asked_for_the_tag(
    upstream: Upstream, user_config: Path, cache: Path
) -> None:
    # Protocol 0 has no way to ask for what is not advertised; servers of old speak nothing else.
    user_config.write_text("[protocol]\n\tversion = 0\n")
    # An annotated tag advertises its own object, not the commit.
    run_git(upstream.repository, "tag", "-f", "-a", "-m", "x", TAG, upstream.release.commit)
    with serve(upstream.repository.parent) as address:
        check_core(open_git(upstream, f"{address}/upstream"))
    assert count_cached_commits(cache, upstream) == 1


@pytest.mark.parametrize("tagged", ["later", "nowhere"])
def test_a_commit_below_what_a_server_names_is_found_in_its_history(
    upstream: Upstream, user_config: Path, cache: Path, tagged: str
) -> None:
    user_config.write_text("[protocol]\n\tversion = 0\n")
    run_git(upstream.repository, "tag", "-d", TAG)
    if tagged == "later":
        run_git(upstream.repository, "tag", TAG, "main")
    check_core(open_git(upstream, f"file://{upstream.repository}"))
    assert count_cached_commits(cache, upstream) == 1


def test_a_shallow_clone_that_holds_the_commit_serves(upstream: Upstream, tmp_path: Path) -> None:
    origin = f"file://{upstream.repository}"
    run_git(tmp_path, "clone", "-q", "--depth=1", "--branch", TAG, origin, "shallow")
    check_core(open_git(upstream, tmp_path / "shallow"))


@pytest.mark.parametrize("version", [0, 2])
def test_a_repository_without_the_commit_is_refused(
    upstream: Upstream, user_config: Path, tmp_path: Path, cache: Path, version: int
) -> None:
    user_config.write_text(f"[protocol]\n\tversion = {version}\n")
    run_git(tmp_path, "clone", "-q", "--depth=1", f"file://{upstream.repository}", "shallow")
    with pytest.raises(SourceError, match=f"E316.*has no commit {upstream.release.commit}"):
        open_git(upstream, tmp_path / "shallow")
    assert not (cache / "git").exists()
    assert not list((cache / "tmp").iterdir())


def test_a_commit_of_another_tree_than_pinned_is_refused(upstream: Upstream, cache: Path) -> None:
    wrong = run_git(upstream.repository, "rev-parse", "main")
    moved = replace(upstream, release=replace(upstream.release, commit=wrong))
    with pytest.raises(SourceError, match=r"E317.*tree digest is \w+, pinned is"):
        open_git(moved)
    assert not (cache / "git").exists()


def test_files_that_are_not_the_release_are_named_against_the_wheel(upstream: Upstream) -> None:
    files = {"megatron/core/package_info.py": b"__version__ = 'x'\n", "megatron/core/new.py": b""}
    (upstream.repository / "megatron/core/later.py").unlink()
    commit = commit_files(upstream.repository, files)
    release = replace(
        upstream.release, commit=commit, tree_digest=tree_digest({**REPOSITORY, **files})
    )
    with pytest.raises(SourceError, match="E315") as caught:
        open_git(replace(upstream, release=release))
    said = "extra megatron/core/new.py, changed megatron/core/package_info.py"
    assert said in str(caught.value)


def test_the_full_tree_holds_every_package_and_the_scripts(upstream: Upstream) -> None:
    files = open_git(upstream, tree="full").files
    packages = {path: data for path, data in REPOSITORY.items() if path.startswith("megatron/")}
    scripts = {
        f"mindspeed/scripts/{name}": REPOSITORY[name]
        for name in ("gpt_builders.py", "model_provider.py", "pretrain_gpt.py")
    }
    native = {HELPERS: files[HELPERS]}
    assert files == {**packages, **scripts, **native}


def test_helpers_of_another_source_are_left_out(upstream: Upstream) -> None:
    changed = {"megatron/core/datasets/helpers.cpp": b"int main() { return 1; }\n"}
    (upstream.repository / "megatron/core/later.py").unlink()
    commit = commit_files(upstream.repository, changed)
    files = {**REPOSITORY, **changed}
    digest = tree_digest({path: files[path] for path in CORE})
    release = replace(
        upstream.release, commit=commit, tree_digest=tree_digest(files), source_digest=digest
    )
    published = OtherDigest("pypi", upstream.release.source_digest, "another helpers.cpp")
    release = replace(release, other_digests=(published,))
    source = open_git(replace(upstream, release=release))
    assert source.tags == ("py3-none-any",)
    assert HELPERS not in source.files
    assert "helpers.cpp differs" in source.notes[0]


def test_a_fetched_commit_is_read_from_the_cache(upstream: Upstream) -> None:
    first = open_git(upstream)
    shutil.rmtree(upstream.repository / ".git")
    assert open_git(upstream, "https://example.invalid/x.git", offline=True).files == first.files


def test_a_rotted_repository_in_the_cache_is_fetched_anew(upstream: Upstream, cache: Path) -> None:
    open_git(upstream)
    (pack,) = (cache / "git" / upstream.release.commit).rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[40:60] = bytes(20)
    pack.chmod(0o644)
    pack.write_bytes(data)
    check_core(open_git(upstream))


def test_offline_refuses_a_fetch_over_the_network(upstream: Upstream) -> None:
    with pytest.raises(MissingError, match=r"E801.*--offline forbids a fetch"):
        open_git(upstream, "https://example.invalid/x.git", offline=True)


def test_a_server_that_cannot_be_reached_is_named_without_the_password(upstream: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"http://user:secret@127.0.0.1:{port}/x.git"
    with pytest.raises(MissingError, match=r"E804.*cannot fetch from http://127") as caught:
        open_git(upstream, address)
    assert "secret" not in str(caught.value)


def test_without_git_the_message_says_what_to_install(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match=r"E805.*no git"):
        open_git(upstream, f"file://{upstream.repository}")


def test_a_release_without_a_commit_has_no_git_source(upstream: Upstream) -> None:
    release = replace(upstream.release, commit="", tree_digest="")
    with pytest.raises(SourceError, match=r"E316.*from PyPI alone"):
        open_git(replace(upstream, release=release))


def test_the_users_address_rewriting_is_honoured(upstream: Upstream, user_config: Path) -> None:
    parent = upstream.repository.parent
    user_config.write_text(f'[url "file://{parent}/"]\n\tinsteadOf = https://mirror.invalid/\n')
    check_core(open_git(upstream, "https://mirror.invalid/upstream"))


def test_content_is_not_touched_by_the_users_settings(
    upstream: Upstream, user_config: Path, tmp_path: Path
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    hook = hooks / "reference-transaction"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'hook-ran'}\nexit 1\n")
    hook.chmod(0o755)
    attributes = "* text eol=crlf filter=evil working-tree-encoding=UTF-16\n"
    (tmp_path / "attributes").write_text(attributes)
    user_config.write_text(
        f"[core]\n\tautocrlf = true\n\thooksPath = {hooks}\n\tfsmonitor = /bin/false\n"
        f"\tattributesFile = {tmp_path / 'attributes'}\n"
        "[commit]\n\tgpgsign = true\n[diff]\n\tnoprefix = true\n[apply]\n\twhitespace = fix\n"
        '[filter "evil"]\n\tsmudge = tr a-z A-Z\n\trequired = true\n'
        "[init]\n\ttemplateDir = /nonexistent\n\tdefaultObjectFormat = sha256\n"
        "[fetch]\n\tprune = true\n\tfsckObjects = true\n[gc]\n\tauto = 1\n"
        "[protocol]\n\tversion = 0\n"
    )
    # Without the tag everything is fetched, and references are written: hooks could run.
    run_git(upstream.repository, "tag", "-d", TAG)
    check_core(open_git(upstream, f"file://{upstream.repository}"))
    assert open_git(upstream, tree="full").files["megatron/legacy/model.py"] == b"old = True\r\n"
    assert not (tmp_path / "hook-ran").exists()


def test_the_callers_git_variables_do_not_reach_git(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_git(tmp_path, "init", "-q", "elsewhere")
    for name, value in {
        "GIT_DIR": str(tmp_path / "elsewhere" / ".git"),
        "GIT_WORK_TREE": str(tmp_path / "elsewhere"),
        "GIT_INDEX_FILE": "/nonexistent/index",
        "GIT_OBJECT_DIRECTORY": str(tmp_path / "objects"),
        "GIT_NAMESPACE": "other",
        "GIT_ATTR_SOURCE": "HEAD",
        "GIT_DEFAULT_HASH": "sha256",
        "LANG": "zh_CN.UTF-8",
        "LANGUAGE": "zh_CN",
    }.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path / "elsewhere")
    check_core(open_git(upstream))
    check_core(open_git(upstream))
    assert dict(os.environ) == before
    assert not (tmp_path / "objects").exists()


def test_replaced_objects_are_not_believed(upstream: Upstream, cache: Path) -> None:
    first = open_git(upstream)
    commit = upstream.release.commit
    kept = cache / "git" / commit
    other = run_git(kept, "commit-tree", "-m", "evil", f"{commit}:megatron")
    run_git(kept, "replace", commit, other)
    assert open_git(upstream, "https://example.invalid/x.git", offline=True) == replace(
        first, origin=f"git: https://example.invalid/x.git at {commit}"
    )


def test_a_symlink_in_the_repository_is_digested_but_not_packaged(upstream: Upstream) -> None:
    (upstream.repository / "megatron/core/later.py").unlink()
    (upstream.repository / "megatron/legacy/link.py").symlink_to("/etc/passwd")
    commit = commit_files(upstream.repository, {})
    files = {**REPOSITORY, "megatron/legacy/link.py": b"/etc/passwd"}
    release = replace(upstream.release, commit=commit, tree_digest=tree_digest(files))
    source = open_git(replace(upstream, release=release), tree="full")
    assert "megatron/legacy/link.py" not in source.files


@pytest.mark.parametrize("name", ["..", ".GIT", "a\\b", "a\nb"])
def test_a_tree_with_an_unsafe_path_is_refused(upstream: Upstream, name: str) -> None:
    repository = upstream.repository
    blob = run_git(repository, "hash-object", "-w", "--stdin", stdin=b"evil")
    entry = f"100644 {name}\0".encode() + bytes.fromhex(blob)
    literal = ("hash-object", "-w", "--literally", "-t", "tree", "--stdin")
    tree = run_git(repository, *literal, stdin=entry)
    commit = run_git(repository, "commit-tree", "-m", "evil", tree)
    run_git(repository, "tag", "evil", commit)
    release = replace(upstream.release, commit=commit, tree_digest=sha256(b"any"))
    with pytest.raises(SourceError, match=r"E317.*unsafe path"):
        open_git(replace(upstream, release=release), repository)


@pytest.mark.parametrize(
    "where",
    [
        "ext::sh -c 'touch pwned'",
        "fd::7",
        "::x",
        "--upload-pack=touch pwned",
        "-x",
        "ftp://host/x",
        "ext+git://x",
        "/no/such/folder",
        "no-such-folder",
        "https://host/\nx",
    ],
)
def test_an_address_that_is_no_repository_is_refused(where: str) -> None:
    with pytest.raises(SourceError, match="E318"):
        check_url(where)


@pytest.mark.parametrize(
    "where", ["https://host/x.git", "ssh://git@host/x", "git@host:team/x.git", "git://host/x"]
)
def test_an_address_is_handed_on_as_it_is(where: str) -> None:
    assert check_url(where) == where


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert check_url("a:b") == str(tmp_path / "a:b")
    assert check_url("") == NVIDIA_URL


def test_a_rewrite_to_a_command_is_refused_by_git(
    upstream: Upstream, user_config: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "pwned"
    user_config.write_text(
        f'[url "ext::touch {mark} "]\n\tinsteadOf = https://x.invalid/\n'
        '[protocol "ext"]\n\tallow = always\n'
    )
    with pytest.raises(MissingError, match=r"E804.*ext.*not allowed"):
        open_git(upstream, "https://x.invalid/y")
    assert not mark.exists()


def test_a_password_is_hidden_and_nothing_else() -> None:
    assert hide_password("https://me:pw@host:8/x@y") == "https://host:8/x@y"
    assert hide_password("git@host:team/x.git") == "git@host:team/x.git"
