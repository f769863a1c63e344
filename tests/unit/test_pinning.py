"""Pinning: what two sources say of a release, and the text that a person then reads."""

from dataclasses import replace
from pathlib import Path

import pytest

from builders import (
    ARM_312,
    CORE,
    LICENSE,
    REPOSITORY,
    TAG,
    VERSION,
    X86_311,
    Upstream,
    commit_files,
    make_upstream,
    make_wheel,
    run_git,
    stock_cache,
    tree_digest,
    use_links,
)
from mindspeed_overlay.errors import MissingError, SourceError
from mindspeed_overlay.pinning import (
    Addition,
    add_release,
    describe_pins,
    format_stanza,
    insert_stanza,
    verify_release,
)
from mindspeed_overlay.pins import OtherDigest, Pins, load_pins, parse_pins
from mindspeed_overlay.source import pypi
from mindspeed_overlay.source.cache import Cache
from mindspeed_overlay.tree import sha256

ROOT = Path(__file__).parents[2]
OLDER = f"""\
# Kept by hand.
format = 1

# The old one.
[[release]]
tag = "core_v0.0.9"
version = "0.0.9"
default = true
python = ">=3.10"
source-digest = "{"a" * 64}"

[release.wheels]
"megatron_core-0.0.9-py3-none-any.whl" = "{"b" * 64}"

# The new one.
# It is very new.
[[release]]
tag = "core_v0.2.0"
version = "0.2.0"
python = ">=3.10"
source-digest = "{"c" * 64}"

[release.wheels]
"megatron_core-0.2.0-py3-none-any.whl" = "{"d" * 64}"
"""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    made = make_upstream(tmp_path)
    use_links(monkeypatch, made.links)
    monkeypatch.setattr(pypi, "PYTHONS", ("3.11", "3.12"))
    return made


def add(upstream: Upstream, cache: Cache, *, commit: str = "", reason: str = "") -> Addition:
    repository = str(upstream.repository)
    return add_release(OLDER, TAG, cache=cache, git=repository, commit=commit, reason=reason)


def test_adding_pins_what_wheels_and_commit_agree_on(upstream: Upstream, cache: Cache) -> None:
    added = add(upstream, cache)
    assert added.release == upstream.release
    assert added.license_text == LICENSE
    assert added.notes == ()
    pins = parse_pins(added.text)
    assert [release.tag for release in pins.releases] == ["core_v0.0.9", TAG, "core_v0.2.0"]
    assert pins.get(TAG) == added.release
    for wheel in added.release.wheels:
        assert cache.find(wheel.sha256, wheel.filename)


def test_the_persons_own_lines_stay_as_they_are(upstream: Upstream) -> None:
    text = insert_stanza(OLDER, upstream.release)
    stanza = format_stanza(upstream.release)
    head, _, tail = text.partition(stanza + "\n")
    assert head + tail == OLDER
    assert tail.startswith("# The new one.\n# It is very new.\n[[release]]")
    newest = replace(upstream.release, version="0.10.0", tag="core_v0.10.0", wheels=())
    assert insert_stanza(OLDER, newest) == f"{OLDER}\n{format_stanza(newest)}"


def test_a_stanza_is_read_back_as_it_was_written(upstream: Upstream) -> None:
    release = replace(
        upstream.release,
        yanked='a "wrong" \\ version',
        training=True,
        other_digests=(OtherDigest("pypi", "e" * 64, "one file's ünicode\tdiffers"),),
    )
    assert parse_pins(insert_stanza(OLDER, release)).get(TAG) == release


def test_the_shipped_stanzas_are_what_adding_writes() -> None:
    text = (ROOT / "megatron_pin.txt").read_text("utf-8")
    bare = "".join(line for line in text.splitlines(True) if line[0] != "#")
    for release in load_pins(ROOT / "megatron_pin.txt").releases:
        assert format_stanza(release) in bare.replace("default = true\n", "")


def test_a_commit_that_differs_needs_the_right_commit_or_a_reason(
    upstream: Upstream, cache: Cache
) -> None:
    bumped = {"megatron/core/package_info.py": b"__version__ = '0.1.1'\n"}
    wrong = commit_files(upstream.repository, bumped)
    run_git(upstream.repository, "tag", "-f", TAG)
    with pytest.raises(SourceError, match=r"E306.*changed megatron/core/package_info\.py"):
        add(upstream, cache)
    assert add(upstream, cache, commit=upstream.release.commit).release == upstream.release
    release = add(upstream, cache, reason="the tag sits on the bump").release
    assert release.commit == wrong
    assert release.tree_digest == tree_digest({**REPOSITORY, **bumped})
    assert release.digest_for("pypi") == upstream.release.source_digest
    assert release.digest_for("git") == release.source_digest != release.digest_for("pypi")


def test_a_release_that_git_does_not_know_is_pinned_from_pypi_alone(
    upstream: Upstream, cache: Cache
) -> None:
    run_git(upstream.repository, "tag", "-d", TAG)
    added = add(upstream, cache)
    assert "has no tag core_v0.1.0" in added.notes[0]
    assert (added.release.commit, added.release.tree_digest, added.license_text) == ("", "", b"")
    assert add_release(OLDER, TAG, cache=cache, git=None).release == added.release


def test_wheels_that_differ_among_themselves_are_refused(upstream: Upstream, cache: Cache) -> None:
    files = {**CORE, "megatron/core/new.py": b""}
    make_wheel(upstream.links, tag=ARM_312, files=files)
    with pytest.raises(SourceError, match=r"E306.*aarch64\.whl differs.*extra megatron/core/new"):
        add(upstream, cache)


def test_a_hostile_wheel_is_not_pinned(upstream: Upstream, cache: Cache) -> None:
    make_wheel(upstream.links, extra={"megatron/core/evil.so": b"ELF"})
    with pytest.raises(SourceError, match="E314"):
        add(upstream, cache)


def test_without_a_stated_floor_the_oldest_wheel_is_the_floor(
    upstream: Upstream, cache: Cache
) -> None:
    for tag in (X86_311, ARM_312):
        make_wheel(upstream.links, tag=tag, floor="")
    assert add(upstream, cache).release.python == ">=3.11"


def test_a_release_that_no_index_has_is_an_error(upstream: Upstream, cache: Cache) -> None:
    with pytest.raises(MissingError, match=r"E802.*No matching distribution"):
        add_release(OLDER, "core_v9.0", cache=cache, git=None)


@pytest.mark.parametrize("name", ["core_v0.2.0", "0.2.0", "v0.0.9"])
def test_a_pinned_release_is_not_added_twice(cache: Cache, name: str) -> None:
    with pytest.raises(SourceError, match="E304"):
        add_release(OLDER, name, cache=cache, git=None)


def verify(upstream: Upstream, cache: Cache, git: str | None) -> dict[str, tuple[str, str]]:
    stock_cache(upstream, cache.root)
    checks = verify_release(upstream.release, git=git, cache=cache, offline=True)
    return {check.subject: (check.result, check.detail) for check in checks}


def test_verifying_confirms_every_statement(upstream: Upstream, cache: Cache) -> None:
    checks = verify(upstream, cache, str(upstream.repository))
    assert {result for result, _ in checks.values()} == {"ok"}
    assert len(checks) == 2 + 3


def test_what_was_not_looked_at_is_not_called_good(upstream: Upstream, cache: Cache) -> None:
    checks = verify(upstream, cache, None)
    assert checks.pop("commit") == ("not checked", "no git source was given")
    assert [result for result, _ in checks.values()].count("not checked") == 3
    alone = replace(upstream, release=replace(upstream.release, commit="", tree_digest=""))
    assert verify(alone, cache, "")["commit"] == ("not checked", "the release has no commit")


@pytest.mark.parametrize(
    ("change", "subject", "said"),
    [
        ({"source_digest": "0" * 64}, "source-digest of the commit", "it is "),
        ({"source_digest": "0" * 64}, "wheel", "its source digest is "),
        ({"python": ">=3.9"}, "wheel", "it asks for Python >=3.10"),
        ({"license": "0" * 64}, "license", f"it is {sha256(LICENSE)}"),
        ({"tree_digest": "0" * 64}, "commit and tree-digest", "its tree digest is "),
        ({"commit": "0" * 40}, "commit and tree-digest", "has no commit 000"),
    ],
)
def test_a_wrong_statement_is_found(
    upstream: Upstream, cache: Cache, change: dict[str, str], subject: str, said: str
) -> None:
    release = replace(upstream.release, **change)  # type: ignore[arg-type]
    name = release.wheels[0].filename if subject == "wheel" else subject
    checks = verify(replace(upstream, release=release), cache, str(upstream.repository))
    result, detail = checks[name]
    assert result == "wrong"
    assert said in detail


def test_the_list_says_what_a_pin_holds(upstream: Upstream) -> None:
    pins = Pins((upstream.release,), upstream.release)
    (row,) = describe_pins(pins)
    assert (row["tag"], row["version"], row["default"]) == (TAG, VERSION, True)
    assert "cp312-cp312-manylinux_2_28_aarch64" in str(row["targets"])
    assert len(describe_pins(load_pins(ROOT / "megatron_pin.txt"))) == 7
