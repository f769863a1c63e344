"""The pin: which upstream releases exist for this tool, and the digests that guard their bytes.

A person edits the file, so it is TOML with one stanza per release, in release order, and every
error names a line. Only the standard library is imported here: a build with nothing to do reads it.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import Problem, SourceError

FORMAT = 1
_HEX40 = re.compile(r"[0-9a-f]{40}")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?")
_PYTHON = re.compile(r"(>=|<|<=|==|~=|!=)\s*3(\.[0-9]+)*(\.\*)?(\s*,\s*(>=|<|<=|!=)\s*[0-9.]+)*")
_WHEEL = re.compile(r"megatron_core-([^-]+)-([^-]+)-([^-]+)-([^-]+)\.whl")


@dataclass(frozen=True)
class Wheel:
    """One official wheel and the hash that its bytes must have."""

    filename: str
    sha256: str

    @property
    def tags(self) -> tuple[str, ...]:
        """The wheel's tags one by one, in the order of its file name."""
        pythons, abis, platforms = self.filename.removesuffix(".whl").split("-")[-3:]
        return tuple(
            f"{python}-{abi}-{platform}"
            for python in pythons.split(".")
            for abi in abis.split(".")
            for platform in platforms.split(".")
        )


@dataclass(frozen=True)
class OtherDigest:
    """The digest of a source whose bytes differ from the commit's, and why they do."""

    source: str
    digest: str
    reason: str


@dataclass(frozen=True)
class Release:
    """One pinned release. Commit and digests are the truth, tag and version are labels.

    An empty `commit` or `tree_digest` is a release known from PyPI alone; an empty `license` one
    whose text no source carried.
    """

    tag: str
    commit: str
    version: str
    python: str
    source_digest: str
    tree_digest: str
    wheels: tuple[Wheel, ...]
    other_digests: tuple[OtherDigest, ...]
    yanked: str
    license: str
    training: bool

    def digest_for(self, source: str) -> str:
        """The source digest that `source` ("pypi" or "git") must show."""
        others = {other.source: other.digest for other in self.other_digests}
        return others.get(source, self.source_digest)

    @property
    def digests(self) -> frozenset[str]:
        """Every digest under which these files are this release."""
        return frozenset({self.source_digest, *(o.digest for o in self.other_digests)})


@dataclass(frozen=True)
class Pins:
    """The pinned releases in file order, and the one that is meant when none is named."""

    releases: tuple[Release, ...]
    default: Release

    def get(self, name: str) -> Release:
        """The release of this tag or version.

        Raises:
            SourceError: E301, listing what is pinned.
        """
        for release in self.releases:
            if name in (release.tag, release.version):
                return release
        known = ", ".join(release.tag for release in self.releases)
        raise SourceError(
            Problem(
                code="E301",
                message=f"release {name!r} is not pinned; pinned are {known}",
                hint=f"`mindspeed-overlay pin add {name}` adds it",
            )
        )

    def index(self, tag: str) -> int:
        """The place of a release in the order of releases."""
        return self.releases.index(self.get(tag))

    def between(self, since: str = "", until: str = "") -> tuple[Release, ...]:
        """The releases from `since` to `until`, both included; empty means no bound."""
        first = self.index(since) if since else 0
        last = self.index(until) if until else len(self.releases) - 1
        return self.releases[first : last + 1]


def load_pins(path: Path) -> Pins:
    """Read and validate a pin file.

    Raises:
        SourceError: E302 the file cannot be read as TOML; E303 a stanza is wrong; E304 the stanzas
            contradict each other. All problems of the file are reported together.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the pin file {path}: {error}"
        raise SourceError(Problem(code="E302", message=message, path=str(path))) from error
    return parse_pins(text, where=str(path))


def parse_pins(text: str, *, where: str = "megatron_pin.txt") -> Pins:
    """`load_pins` of a text; `where` names it in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+)", str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        problem = Problem(code="E302", message=f"{where}:{line}: {error}", path=where, line=line)
        raise SourceError(problem) from error
    reader = _Reader(text, where)
    pins = reader.read(data)
    if reader.problems:
        raise SourceError(*reader.problems)
    return pins


class _Reader:
    """Turns parsed TOML into values and collects what is wrong, with lines."""

    def __init__(self, text: str, where: str) -> None:
        self.problems: list[Problem] = []
        self._where = where
        self._lines = text.splitlines()
        starts = [n for n, line in enumerate(self._lines) if re.match(r"\s*\[\[release]]", line)]
        self._spans = list(pairwise([*starts, len(self._lines)]))

    def read(self, data: dict[str, Any]) -> Pins:
        if data.get("format") != FORMAT:
            self._wrong(None, "format", f"format must be {FORMAT}, is {data.get('format')!r}")
        for key in sorted(data.keys() - {"format", "release"}):
            self._wrong(None, key, f"unknown key {key!r}")
        stanzas = data.get("release")
        if not isinstance(stanzas, list) or not all(isinstance(s, dict) for s in stanzas):
            self._wrong(None, "release", "no [[release]] stanza")
            stanzas = []
        releases = tuple(self._release(n, dict(stanza)) for n, stanza in enumerate(stanzas))
        defaults = [n for n, stanza in enumerate(stanzas) if stanza.get("default") is True]
        if len(defaults) != 1:
            message = f"exactly one release must say default = true, {len(defaults)} do"
            self._wrong(defaults[1] if defaults[1:] else None, "default", message, code="E304")
        for n in defaults:
            if releases[n].yanked:
                self._wrong(n, "default", "a yanked release cannot be the default", code="E304")
        self._find_repeats(releases)
        if self.problems:
            return Pins((), _NOTHING)
        return Pins(releases, releases[defaults[0]])

    def _find_repeats(self, releases: tuple[Release, ...]) -> None:
        seen: dict[str, int] = {}
        for n, release in enumerate(releases):
            labels = {"tag": release.tag, "version": release.version, "commit": release.commit}
            for key, value in labels.items():
                if value and seen.setdefault(f"{key} {value}", n) != n:
                    self._wrong(n, key, f"{key} {value!r} is pinned twice", code="E304")
            for wheel in release.wheels:
                if seen.setdefault(f"wheel {wheel.sha256}", n) != n:
                    message = f"{wheel.filename} has the hash of another release's wheel"
                    self._wrong(n, wheel.filename, message, code="E304")

    def _release(self, n: int, stanza: dict[str, Any]) -> Release:
        def take(key: str, pattern: re.Pattern[str], needed: bool = True) -> str:
            value = stanza.pop(key, None)
            if value is None and not needed:
                return ""
            if not isinstance(value, str) or not pattern.fullmatch(value):
                shown = "is missing" if value is None else f"{value!r} is not valid"
                self._wrong(n, key, f"{key} {shown}")
                return ""
            return value

        tag = take("tag", _TAG)
        commit = take("commit", _HEX40, needed=False)
        version = take("version", _VERSION)
        release = Release(
            tag=tag,
            commit=commit,
            version=version,
            python=take("python", _PYTHON),
            source_digest=take("source-digest", _HEX64),
            tree_digest=take("tree-digest", _HEX64, needed=bool(commit)),
            wheels=tuple(self._wheels(n, stanza.pop("wheels", None), version)),
            other_digests=tuple(self._other_digests(n, stanza.pop("other-digest", []))),
            yanked=take("yanked", re.compile(r".*\S.*"), needed=False),
            license=take("license", _HEX64, needed=bool(commit)),
            training=self._flag(n, stanza, "training"),
        )
        self._flag(n, stanza, "default")
        for key in sorted(stanza):
            self._wrong(n, key, f"unknown key {key!r}")
        return release

    def _flag(self, n: int, stanza: dict[str, Any], key: str) -> bool:
        value = stanza.pop(key, False)
        if not isinstance(value, bool):
            self._wrong(n, key, f"{key} must be true or false, is {value!r}")
        return value is True

    def _wheels(self, n: int, table: object, version: str) -> Iterator[Wheel]:
        if not isinstance(table, dict) or not table:
            self._wrong(n, "wheels", "the [release.wheels] table is missing or empty")
            return
        for filename, digest in table.items():
            match = _WHEEL.fullmatch(filename)
            if not match or match[1] != version:
                self._wrong(n, filename, f"{filename!r} is no wheel of megatron-core {version}")
            elif not isinstance(digest, str) or not _HEX64.fullmatch(digest):
                self._wrong(n, filename, f"{filename} needs a SHA-256 in lower-case hex")
            else:
                yield Wheel(filename, digest)

    def _other_digests(self, n: int, items: object) -> Iterator[OtherDigest]:
        for item in items if isinstance(items, list) else [items]:
            fields = item if isinstance(item, dict) else {}
            source, digest, reason = (fields.get(k) for k in ("source", "digest", "reason"))
            known = fields.keys() == {"source", "digest", "reason"} and source in ("pypi", "git")
            if not known or not _HEX64.fullmatch(str(digest)) or not str(reason).strip():
                message = "other-digest needs source (pypi or git), digest (SHA-256) and reason"
                self._wrong(n, "other-digest", message)
            else:
                yield OtherDigest(str(source), str(digest), str(reason))

    def _wrong(self, n: int | None, key: str, message: str, *, code: str = "E303") -> None:
        line = self._line_of(n, key)
        text = f"{self._where}:{line}: {message}"
        self.problems.append(Problem(code=code, message=text, path=self._where, line=line))

    def _line_of(self, n: int | None, key: str) -> int:
        """The line of `key` in stanza `n`, else where that stanza starts."""
        start, end = 0, len(self._lines)
        if n is not None and n < len(self._spans):
            start, end = self._spans[n]
        pattern = re.compile(rf'\s*(\[+release\.)?["\']?{re.escape(key)}["\']?\s*[=\]]')
        for index in range(start, end):
            if pattern.match(self._lines[index]):
                return index + 1
        return start + 1


_NOTHING = Release("", "", "", "", "", "", (), (), "", "", False)
