"""Official wheels, chosen from the pin and fetched with the user's own pip.

The pin knows every wheel's name and hash, so pip is told exactly what to bring; mirrors, proxies,
find-links and credentials are its business. Only wheels are asked for: pip would run an sdist's
build backend.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mindspeed_overlay.errors import MissingError, Problem, SourceError
from mindspeed_overlay.pins import Release, Wheel
from mindspeed_overlay.source.cache import Cache, disk_error
from mindspeed_overlay.source.progress import run_pip, show_bar

PYTHONS = tuple(f"3.{minor}" for minor in range(8, 16))
MACHINES = ("x86_64", "aarch64")
_NOTHING_FITS = re.compile(r"No matching distribution found|Could not find a version")
_YANKED = re.compile(r"yanked version: .*?Reason for being yanked: ([^\n]*)", re.DOTALL)
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_NEWEST_GLIBC = 60
_PLATFORM = re.compile(r"(?P<libc>manylinux|musllinux)_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")


@dataclass(frozen=True)
class FoundWheels:
    """The wheels of a release as they were brought, and why it was yanked ("" if it was not)."""

    paths: tuple[Path, ...]
    yanked: str


def choose_wheel(
    release: Release, *, python: str | None = None, platform: str | None = None
) -> Wheel | None:
    """The pinned wheel that fits a Python and a platform best, or None.

    Args:
        release: where to choose from.
        python: such as "3.12"; default the running one.
        platform: such as "linux_aarch64" (any glibc), "manylinux_2_28_x86_64" (at most that glibc),
            "win_amd64"; default the running one.

    Raises:
        SourceError: E305, the Python is outside the release's floor, or is no version.
    """
    from packaging.tags import compatible_tags, cpython_tags

    number = python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    check_python(release, number)
    major, minor = (int(part) for part in number.split(".")[:2])
    platforms = list(expand_platform(platform))
    interpreter = f"cp{major}{minor}"
    tags = [
        *cpython_tags((major, minor), abis=[interpreter], platforms=platforms),
        *compatible_tags((major, minor), interpreter=interpreter, platforms=platforms),
    ]
    offered = {tag: wheel for wheel in release.wheels for tag in wheel.tags}
    return next((offered[str(tag)] for tag in tags if str(tag) in offered), None)


def check_python(release: Release, python: str) -> None:
    """Refuse a Python that the release does not run on.

    Raises:
        SourceError: E305, listing the Pythons that have a wheel.
    """
    from packaging.specifiers import SpecifierSet

    wellformed = re.fullmatch(r"\d+\.\d+(\.\d+)?", python) is not None
    if wellformed and SpecifierSet(release.python).contains(python, prereleases=True):
        return
    exist = sorted({_python_of(wheel) for wheel in release.wheels}, key=_numbers)
    message = f"{release.tag} needs Python {release.python}, not {python}"
    hint = f"wheels exist for Python {', '.join(exist)}; choose one with --python"
    raise SourceError(Problem(code="E305", message=message, hint=hint))


def expand_platform(platform: str | None) -> Iterator[str]:
    """The wheel platform tags that run on `platform`, best first."""
    if platform is None:
        from packaging.tags import platform_tags

        yield from platform_tags()
        return
    name = platform.replace("-", "_").replace(".", "_")
    for legacy, (major, minor) in _LEGACY.items():
        if name.startswith(f"{legacy}_"):
            name = f"manylinux_{major}_{minor}_{name.removeprefix(f'{legacy}_')}"
    if name.startswith("linux_"):
        name = f"manylinux_2_{_NEWEST_GLIBC}_{name.removeprefix('linux_')}"
    if not (match := _PLATFORM.fullmatch(name)):
        yield name
        return
    libc, generation, arch = match["libc"], int(match["major"]), match["arch"]
    for release in range(int(match["minor"]), -1, -1):
        yield f"{libc}_{generation}_{release}_{arch}"
        for legacy, glibc in _LEGACY.items():
            if libc == "manylinux" and (generation, release) == glibc:
                yield f"{legacy}_{arch}"
    yield f"linux_{arch}"


def fetch_wheel(
    release: Release,
    wheel: Wheel,
    *,
    cache: Cache,
    offline: bool = False,
    progress: bool = False,
) -> Path:
    """The verified wheel in the cache; pip is started only where it is not there.

    Raises:
        SourceError: E311, the bytes offered are not those pinned.
        MissingError: E801 offline and not cached, E802 pip fails, E803 no room.
    """
    if path := cache.find(wheel.sha256, wheel.filename):
        return path
    if offline:
        message = f"{wheel.filename} is not in the cache {cache.root}, and --offline forbids a look"
        hint = f"run `mindspeed-overlay pin verify {release.tag}` once with a network"
        raise MissingError(Problem(code="E801", message=message, hint=hint))

    def download(folder: Path) -> Path:
        return run_pip_download(release, wheel, folder=folder, progress=progress)

    return cache.get(wheel.sha256, wheel.filename, download)


def run_pip_download(release: Release, wheel: Wheel, *, folder: Path, progress: bool) -> Path:
    """Have pip bring exactly this wheel into `folder`."""
    wanted = folder / "requirements.txt"
    pinned = f"megatron-core=={release.version} --hash=sha256:{wheel.sha256}\n"
    wanted.write_text(pinned, encoding="utf-8")
    target = folder / "wheels"
    python, abi, platforms = wheel.filename.removesuffix(".whl").split("-")[-3:]
    arguments = [*target_arguments(python, abi, platforms.split(".")), "--dest", str(target)]
    arguments += ["--require-hashes", "--requirement", str(wanted)]
    code, said = call_pip(arguments, title=wheel.filename if progress else "")
    if code:
        raise _explain(said, wheel.filename, folder)
    got = [path for path in target.iterdir() if path.suffix == ".whl"]
    if [path.name for path in got] != [wheel.filename]:
        names = ", ".join(path.name for path in got) or "nothing"
        message = f"asked for {wheel.filename}, pip brought {names}"
        raise SourceError(Problem(code="E311", message=message))
    return got[0]


def find_wheels(version: str, *, folder: Path, progress: bool = False) -> FoundWheels:
    """Bring every official wheel of a release that pip can see, for the known targets.

    Args:
        version: of megatron-core on PyPI.
        folder: empty; keeps the wheels.
        progress: show a bar on a terminal.

    Raises:
        MissingError: E802, pip fails, or there is no wheel for any target.
    """
    targets = [(python, machine) for python in PYTHONS for machine in MACHINES]
    title = f"megatron-core {version}" if progress else ""
    yanked, complaint = "", ""
    with show_bar(title, visible=progress) as report:
        for done, (python, machine) in enumerate(targets):
            report(done, len(targets))
            tag = f"cp{python.replace('.', '')}"
            arguments = target_arguments(tag, tag, expand_platform(f"linux_{machine}"))
            arguments += ["--abi", "abi3", "--abi", "none", "--dest", str(folder)]
            code, said = call_pip([*arguments, f"megatron-core=={version}"])
            if code and not _NOTHING_FITS.search(said):
                raise _explain(said, f"megatron-core {version}", folder)
            complaint = complaint or (said if code else "")
            if match := _YANKED.search(said):
                yanked = match[1].strip() or "no reason given"
    paths = tuple(sorted(folder.glob("*.whl")))
    if not paths:
        raise _explain(complaint, f"megatron-core {version}", folder)
    return FoundWheels(paths, yanked)


def target_arguments(python: str, abi: str, platforms: Iterable[str]) -> list[str]:
    """pip's options that look for the wheels of another interpreter, as tags name it."""
    version = _python_version(python)
    options = ["--python-version", version, "--implementation", "cp", "--abi", abi]
    return options + [word for name in platforms for word in ("--platform", name)]


def call_pip(arguments: list[str], *, title: str = "") -> tuple[int, str]:
    """Run `pip download`, with a bar if it has a title; returns its status and what it said.

    The folder it runs in is empty, so that no stray `pip.py` is picked up; configuration files and
    PIP_* variables are the user's.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input"]
    environment = os.environ | {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
    with tempfile.TemporaryDirectory() as empty:
        return run_pip([*command, *arguments], cwd=empty, env=environment, title=title)


def _explain(said: str, filename: str, folder: Path) -> Exception:
    lines = [line.strip() for line in said.splitlines() if not line.startswith("WARNING")]
    first = next((n for n, line in enumerate(lines) if line.startswith("ERROR")), -3)
    short = "; ".join(line for line in lines[first:] if line) or "it said nothing"
    if "No space left on device" in said:
        return disk_error(folder.parent.parent, "no space left on device")
    if "DO NOT MATCH THE HASHES" in said:
        message = f"{filename}: pip was offered bytes of another hash and refused them: {short}"
        hint = "the index, mirror or network serves other bytes; none of them were used"
        return SourceError(Problem(code="E311", message=message, hint=hint))
    message = f"pip could not bring {filename}: {short}"
    hint = "`python -m pip config list` shows which index pip asks"
    return MissingError(Problem(code="E802", message=message, hint=hint))


def _python_of(wheel: Wheel) -> str:
    return _python_version(wheel.tags[0].split("-")[0])


def _python_version(tag: str) -> str:
    digits = re.sub(r"\D", "", tag)
    return f"{digits[0]}.{digits[1:]}" if digits[1:] else digits


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
