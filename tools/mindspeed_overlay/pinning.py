"""The work behind `pin list`, `pin verify` and `pin add`.

Adding reads every wheel that the index has and the commit that git has, and compares them; the
result is a stanza of text, so that what a person wrote in the pin file stays as it is.
"""

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from mindspeed_overlay.errors import Problem, SourceError
from mindspeed_overlay.pins import OtherDigest, Pins, Release, Wheel, parse_pins
from mindspeed_overlay.source import describe_difference
from mindspeed_overlay.source.cache import Cache
from mindspeed_overlay.source.git import (
    CommitTree,
    fetch_commit,
    open_commit,
    read_commit,
    resolve_tag,
)
from mindspeed_overlay.source.pypi import fetch_wheel, find_wheels
from mindspeed_overlay.source.transport import check_url, hide_password, require_git
from mindspeed_overlay.source.wheelfile import UpstreamWheel, is_helpers, read_wheel
from mindspeed_overlay.tree import sha256, source_digest


@dataclass(frozen=True)
class Check:
    """One statement of the pin: "ok", "wrong" or "not checked", and why."""

    subject: str
    result: str
    detail: str = ""


@dataclass(frozen=True)
class Addition:
    """What `pin add` makes: the new text of the pin file, and what the user should know.

    `license_text` belongs in the licences folder under its hash, unless it is there already.
    """

    text: str
    release: Release
    license_text: bytes
    notes: tuple[str, ...]


def describe_pins(pins: Pins) -> list[dict[str, object]]:
    """The pinned releases as `pin list --json` prints them."""
    return [
        {
            "tag": release.tag,
            "commit": release.commit,
            "version": release.version,
            "default": release == pins.default,
            "python": release.python,
            "training": release.training,
            "yanked": release.yanked,
            "source_digest": release.source_digest,
            "tree_digest": release.tree_digest,
            "targets": sorted({tag for wheel in release.wheels for tag in wheel.tags}),
            "wheels": {wheel.filename: wheel.sha256 for wheel in release.wheels},
        }
        for release in pins.releases
    ]


def verify_release(
    release: Release,
    *,
    git: str | None = None,
    cache: Cache,
    offline: bool = False,
    progress: bool = False,
) -> tuple[Check, ...]:
    """Check every statement of a stanza against its sources.

    Args:
        release: the stanza.
        git: where to look for the commit: an address, a path, "" for NVIDIA's repository; None
            leaves what only git can show unchecked, and says so.
        cache: keeps what is fetched.
        offline: use the cache only.
        progress: show bars on a terminal.

    Raises:
        MissingError: something could not be fetched.
    """
    checks = []
    for wheel in release.wheels:
        try:
            path = fetch_wheel(release, wheel, cache=cache, offline=offline, progress=progress)
            upstream = read_wheel(path, version=release.version, training=release.training)
            wrong = _contradict_wheel(release, upstream)
        except SourceError as error:
            wrong = "; ".join(problem.message for problem in error.problems)
        checks.append(_check(wheel.filename, wrong))
    if git is None or not release.commit:
        why = "no git source was given" if release.commit else "the release has no commit"
        subjects = ("commit", "tree-digest", "source-digest of the commit", "license")
        return (*checks, *(Check(subject, "not checked", why) for subject in subjects))
    try:
        commit = open_commit(release, git, cache=cache, offline=offline, progress=progress)
    except SourceError as error:
        wrong = "; ".join(problem.message for problem in error.problems)
        return (*checks, Check("commit and tree-digest", "wrong", wrong))
    digest = source_digest(commit.files, training=release.training)
    wanted = release.digest_for("git")
    license_hash = sha256(commit.files.get("LICENSE", b""))
    return (
        *checks,
        Check("commit and tree-digest", "ok"),
        _check("source-digest of the commit", "" if digest == wanted else f"it is {digest}"),
        _check("license", "" if license_hash == release.license else f"it is {license_hash}"),
    )


def add_release(
    text: str,
    tag: str,
    *,
    cache: Cache,
    git: str | None = "",
    commit: str = "",
    reason: str = "",
    progress: bool = False,
) -> Addition:
    """Compose a pin file that holds one release more.

    Args:
        text: of the pin file.
        tag: upstream's, such as core_v0.19.0; the PyPI version is read off it.
        cache: keeps the wheels that are read.
        git: the repository to compare with; "" is NVIDIA's, None leaves git out.
        commit: the commit to pin; default the one the tag stands for.
        reason: why commit and wheels differ, where they do.
        progress: show bars on a terminal.

    Raises:
        SourceError: E304 the release is pinned already; E306 the sources differ and no reason is
            given, or the wheels differ among themselves; E31x a wheel is not sound.
        MissingError: E802 pip or E804 git cannot bring it.
    """
    pins = parse_pins(text)
    version = re.sub(r"^(core_)?v(?=\d)", "", tag)
    if any(tag == release.tag or version == release.version for release in pins.releases):
        raise SourceError(Problem(code="E304", message=f"{tag} is pinned already"))
    with cache.scratch() as folder:
        release, files = _read_wheels(tag, version, cache, folder, progress)
        tree, notes = None, []
        if git is not None:
            release, tree = _read_git(release, check_url(git), commit, folder, progress)
            if tree is None:
                notes.append(f"{hide_password(check_url(git))} has no tag {tag}: from PyPI alone")
    if tree is not None:
        release = _compare(release, files, tree, reason)
    if release.yanked:
        notes.append(f"{tag} was yanked by its publisher: {release.yanked}")
    new_text = insert_stanza(text, release)
    parse_pins(new_text)
    license_text = tree.files.get("LICENSE", b"") if tree else b""
    return Addition(new_text, release, license_text, tuple(notes))


def insert_stanza(text: str, release: Release) -> str:
    """Put the stanza of `release` before that of the next higher version, else at the end."""
    from packaging.version import Version

    lines = text.splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if re.match(r"\s*\[\[release]]", line)]
    for start, other in zip(starts, parse_pins(text).releases, strict=True):
        if Version(other.version) > Version(release.version):
            # The comment right above a stanza belongs to it.
            while lines[start - 1].lstrip().startswith("#"):
                start -= 1
            return "".join([*lines[:start], format_stanza(release), "\n", *lines[start:]])
    return text.rstrip("\n") + "\n\n" + format_stanza(release)


def format_stanza(release: Release) -> str:
    """A release as text of the pin file."""
    fields = {
        "tag": release.tag,
        "commit": release.commit,
        "version": release.version,
        "python": release.python,
        "training": release.training,
        "source-digest": release.source_digest,
        "tree-digest": release.tree_digest,
        "license": release.license,
        "yanked": release.yanked,
    }
    lines = ["[[release]]"]
    lines += [f"{key} = {_quote(value)}" for key, value in fields.items() if value]
    for other in release.other_digests:
        lines += ["", "[[release.other-digest]]", f"source = {_quote(other.source)}"]
        lines += [f"digest = {_quote(other.digest)}", f"reason = {_quote(other.reason)}"]
    lines += ["", "[release.wheels]"]
    lines += [f"{_quote(wheel.filename)} = {_quote(wheel.sha256)}" for wheel in release.wheels]
    return "\n".join(lines) + "\n"


def _read_wheels(
    tag: str, version: str, cache: Cache, folder: Path, progress: bool
) -> tuple[Release, dict[str, bytes]]:
    """What the wheels say of a release, and the files that all of them hold."""
    target = folder / "wheels"
    target.mkdir()
    found = find_wheels(version, folder=target, progress=progress)
    wheels, trees, floors = [], [], set()
    for path in found.paths:
        upstream = read_wheel(path, version=version, training=True)
        wheel = Wheel(path.name, sha256(path.read_bytes()))
        cache.get(wheel.sha256, wheel.filename, lambda to, path=path: Path(shutil.copy(path, to)))  # type: ignore[misc]
        wheels.append(wheel)
        trees.append(_without_helpers(upstream))
        floors.add(upstream.metadata("Requires-Python"))
    for wheel, tree in zip(wheels, trees, strict=True):
        if difference := describe_difference(tree, trees[0], training=True):
            message = f"{wheel.filename} differs from {wheels[0].filename}: {difference}"
            raise SourceError(Problem(code="E306", message=message))
    training = any(path.startswith("megatron/training/") for path in trees[0])
    # Where upstream states no floor, its oldest wheel does.
    floor = min(floors - {""}, default=f">={_oldest_python(wheels)}")
    digest = source_digest(trees[0], training=training)
    release = Release(
        tag, "", version, floor, digest, "", tuple(wheels), (), found.yanked, "", training
    )
    return release, trees[0]


def _read_git(
    release: Release, url: str, commit: str, folder: Path, progress: bool
) -> tuple[Release, CommitTree | None]:
    require_git()
    commit = commit or resolve_tag(url, release.tag, folder=folder)
    if not commit:
        return release, None
    release = replace(release, commit=commit)
    repository = fetch_commit(release, url, folder=folder, progress=progress)
    origin = f"git: {hide_password(url)} at {commit}"
    return release, read_commit(repository, commit, origin=origin)


def _compare(release: Release, files: dict[str, bytes], tree: CommitTree, reason: str) -> Release:
    """Complete a release by what git says; where its bytes differ, a reason is needed."""
    difference = describe_difference(tree.files, files, training=release.training)
    if difference and not reason:
        message = f"commit {release.commit} differs from the official wheels: {difference}"
        hint = "give the right commit with --commit, or say with --reason why both are this release"
        raise SourceError(Problem(code="E306", message=message, hint=hint))
    others = (OtherDigest("pypi", release.source_digest, reason),) if difference else ()
    return replace(
        release,
        source_digest=source_digest(tree.files, training=release.training),
        tree_digest=tree.tree_digest,
        other_digests=others,
        license=sha256(tree.files["LICENSE"]) if "LICENSE" in tree.files else "",
    )


def _contradict_wheel(release: Release, upstream: UpstreamWheel) -> str:
    """What a wheel says against the pin, "" for nothing."""
    wrong = []
    digest = source_digest(upstream.files, training=release.training)
    if digest != release.digest_for("pypi"):
        wrong.append(f"its source digest is {digest}")
    floor = upstream.metadata("Requires-Python")
    if floor and floor != release.python:
        wrong.append(f"it asks for Python {floor}")
    if upstream.metadata("Version") != release.version:
        wrong.append(f"it calls itself {upstream.metadata('Version')}")
    return "; ".join(wrong)


def _check(subject: str, wrong: str) -> Check:
    return Check(subject, "wrong" if wrong else "ok", wrong)


def _without_helpers(upstream: UpstreamWheel) -> dict[str, bytes]:
    return {path: data for path, data in upstream.files.items() if not is_helpers(path)}


def _oldest_python(wheels: list[Wheel]) -> str:
    tags = [wheel.tags[0].split("-")[0] for wheel in wheels]
    minors = [int(match[1]) for tag in tags if (match := re.fullmatch(r"cp3(\d+)", tag))]
    return f"3.{min(minors)}" if minors else "3"


def _quote(value: object) -> str:
    """A TOML value; JSON's strings without escapes for DEL are TOML's."""
    import json

    return json.dumps(value, ensure_ascii=False)
