"""Pristine bytes of a pinned release, from PyPI, git or a folder, verified before anyone sees them.

Everything heavy (pip, git, rich, packaging) is imported where it is used: importing this module is
part of a build that finds nothing to do.
"""

from dataclasses import dataclass
from pathlib import Path

from mindspeed_overlay.data import default_licenses
from mindspeed_overlay.errors import Problem, SourceError, UsageError
from mindspeed_overlay.pins import Release, Wheel
from mindspeed_overlay.source.cache import Cache, find_cache_dir
from mindspeed_overlay.source.wheelfile import UpstreamWheel, is_helpers, read_wheel
from mindspeed_overlay.tree import Files, is_digested, sha256, source_digest

HELPERS_CPP = "megatron/core/datasets/helpers.cpp"
FILES_ONLY = ("py3-none-any",)
_NAMED_AT_MOST = 10


@dataclass(frozen=True)
class Source:
    """One release, verified and ready to be patched.

    Attributes:
        release: what was asked for.
        tree: "core" (what the official wheel carries) or "full" (the repository's packages).
        files: every pristine member outside .dist-info; the helpers_cpp extension included.
        wheel: the verified official wheel in the cache, for its metadata and compressed bytes.
        tags: the tags of a wheel made of `files`.
        license_text: upstream's licence, b"" where no source of the release carries one.
        origin: where the files came from, for people.
        notes: sentences the user should see.
        digest: the source digest of `files`.
    """

    release: Release
    tree: str
    files: dict[str, bytes]
    wheel: Path
    tags: tuple[str, ...]
    license_text: bytes
    origin: str
    notes: tuple[str, ...]
    digest: str


def open_source(
    release: Release,
    *,
    spec: str = "pypi",
    tree: str = "core",
    python: str | None = None,
    platform: str | None = None,
    offline: bool = False,
    cache_dir: Path | None = None,
    progress: bool = False,
) -> Source:
    """Bring the files of a release and prove that they are the pinned ones.

    Args:
        release: a pinned release.
        spec: "pypi", "git" (NVIDIA's repository), "git:URL-or-path" or "dir:PATH".
        tree: "core" or "full"; full needs git.
        python: the Python to build for, such as "3.12"; default the running one.
        platform: such as "linux_aarch64"; default the running one.
        offline: use only what the cache (or a local path) holds.
        cache_dir: default as in `find_cache_dir`.
        progress: show bars, where standard error is a terminal.

    Raises:
        UsageError: E201, the specification is not one of the above.
        SourceError: E3xx, a source is not what the pin says.
        MissingError: E80x, a program, the network or room on the disk is missing.
    """
    from mindspeed_overlay.source.pypi import choose_wheel, fetch_wheel

    kind, where = _parse_spec(spec, tree)
    cache = Cache(find_cache_dir(cache_dir))
    fitting = choose_wheel(release, python=python, platform=platform)
    # Always the same one: the output keeps its compressed bytes, which no cache state may change.
    chosen = fitting or release.wheels[0]
    notes = [f"{release.tag} was yanked by its publisher: {release.yanked}"] * bool(release.yanked)
    wheel = fetch_wheel(release, chosen, cache=cache, offline=offline, progress=progress)
    upstream = read_wheel(wheel, version=release.version, training=release.training)
    check_digest(upstream.files, release, {release.digest_for("pypi")}, origin=wheel.name)

    if kind == "git":
        from mindspeed_overlay.source.git import open_commit

        commit = open_commit(release, where, cache=cache, offline=offline, progress=progress)
        origin, license_file = commit.origin, commit.files.get("LICENSE", b"")
        wanted = {release.digest_for("git")}
        check_digest(commit.files, release, wanted, origin=origin, model=upstream.files)
        plain = commit.select(tree, training=release.training)
    elif kind == "dir":
        from mindspeed_overlay.source.folder import read_folder

        origin, license_file = f"folder {where}", b""
        plain = read_folder(Path(where), training=release.training)
        check_digest(plain, release, set(release.digests), origin=origin, model=upstream.files)
    else:
        origin, license_file = f"PyPI: {wheel.name}", b""
        plain = {path: data for path, data in upstream.files.items() if not is_helpers(path)}

    natives, tags = _add_helpers(plain, upstream, fitting, notes)
    texts = (license_file, *upstream.dist_info.values())
    return Source(
        release=release,
        tree=tree,
        files=plain | natives,
        wheel=wheel,
        tags=tags,
        license_text=_find_license(release, texts, notes),
        origin=origin,
        notes=tuple(notes),
        digest=source_digest(plain, training=release.training),
    )


def check_digest(
    files: Files, release: Release, wanted: set[str], *, origin: str, model: Files | None = None
) -> None:
    """Compare the source digest with the pin, and name what differs where a model is at hand.

    Raises:
        SourceError: E315.
    """
    actual = source_digest(files, training=release.training)
    if actual in wanted:
        return
    pinned = " or ".join(sorted(wanted))
    message = f"{origin} is not {release.tag}: source digest {actual}, pinned {pinned}"
    if model is not None:
        message += "; against the official wheel: " + describe_difference(
            files, model, training=release.training
        )
    hint = f"`mindspeed-overlay pin verify {release.tag}` checks the pin against its sources"
    raise SourceError(Problem(code="E315", message=message, hint=hint))


def describe_difference(files: Files, model: Files, *, training: bool) -> str:
    """Name the digested files in which `files` differs from `model`; "" where there are none."""
    ours, theirs = (
        {path: data for path, data in tree.items() if is_digested(path, training=training)}
        for tree in (files, model)
    )
    named = [f"extra {path}" for path in sorted(ours.keys() - theirs.keys())]
    named += [f"missing {path}" for path in sorted(theirs.keys() - ours.keys())]
    both = sorted(ours.keys() & theirs.keys())
    named += [f"changed {path}" for path in both if ours[path] != theirs[path]]
    rest = [f"and {len(named) - _NAMED_AT_MOST} more"] if named[_NAMED_AT_MOST:] else []
    return ", ".join(named[:_NAMED_AT_MOST] + rest)


def _parse_spec(spec: str, tree: str) -> tuple[str, str]:
    kind, colon, where = spec.partition(":")
    if kind not in ("pypi", "git", "dir") or (kind == "pypi" and colon) or (colon and not where):
        message = f"--source {spec!r} is none of pypi, git, git:URL-or-path, dir:PATH"
        raise UsageError(Problem(code="E201", message=message))
    if kind == "dir" and not where:
        raise UsageError(Problem(code="E201", message="--source dir needs a path: dir:PATH"))
    if tree not in ("core", "full"):
        raise UsageError(Problem(code="E201", message=f"--tree {tree!r} is neither core nor full"))
    if tree == "full" and kind != "git":
        message = f"--source {kind} covers the core tree only; --tree full needs --source git"
        raise UsageError(Problem(code="E201", message=message))
    return kind, where


def _add_helpers(
    plain: Files, upstream: UpstreamWheel, fitting: Wheel | None, notes: list[str]
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The compiled extension that belongs to these files, and the tags that follow from it."""
    without = "the result is py3-none-any, and datasets need helpers_cpp compiled where they run"
    if fitting is None:
        notes.append(f"no official wheel for this Python and platform: {without}")
        return {}, FILES_ONLY
    if plain.get(HELPERS_CPP) != upstream.files.get(HELPERS_CPP):
        notes.append(f"helpers.cpp differs from the official wheel's: {without}")
        return {}, FILES_ONLY
    return {path: upstream.files[path] for path in upstream.natives}, fitting.tags


def _find_license(release: Release, texts: tuple[bytes, ...], notes: list[str]) -> bytes:
    if not release.license:
        notes.append(f"no source of {release.tag} carries a licence text")
        return b""
    shipped = default_licenses() / f"{release.license}.txt"
    known = [*texts, shipped.read_bytes()] if shipped.is_file() else list(texts)
    for text in known:
        if sha256(text) == release.license:
            return text
    message = f"the licence text {release.license[:12]} of {release.tag} is nowhere to be found"
    hint = f"put it at {shipped}, byte for byte"
    raise SourceError(Problem(code="E321", message=message, hint=hint))
