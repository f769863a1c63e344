"""Builds the stand-in CANN libraries that the installed torch_npu links to.

Which libraries and functions these are is read off the installed wheel with readelf and nm, so
another torch_npu version needs no change here. `runtime.c` gives the functions that matter; a
function that it lacks becomes one that does nothing (profiling, logging, building of operator
descriptions) or one that refuses and names itself.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import platformdirs
from filelock import FileLock

from ascend_sim.errors import SimulatorError

RUNTIME_SOURCE = Path(__file__).with_name("runtime.c")
MAIN_LIBRARY = "libascendcl.so"
_FORMAT = "1"
_SYSTEM_LIBRARY = re.compile(r"^(ld-linux|lib(c|dl|gcc_s|m|pthread|rt|stdc\+\+)[.-])")
_HARMLESS = re.compile(
    r"^(_Z|Msprof|acltdt|aclAppLog|aclop(Set|Create|Destroy)|acl(Create|Destroy|Set|GetTensor)"
    r"|aclmdl\w*Dump|aclop\w*DumpArgs|HcclSetConfig|rt\w*Register$|aclrtReleaseMemAddress|aclrtUnmapMem"
    r"|aclrtFreePhysical)"
)


def find_package(name: str) -> Path:
    """Return the folder of an installed package without importing it.

    Raises:
        SimulatorError: the package is not installed.
    """
    for entry in sys.path:
        folder = Path(entry or ".", name)
        if (folder / "__init__.py").is_file():
            return folder
    raise SimulatorError(f"{name} is not installed; run `pip install 'mindspeed-overlay[sim]'`")


def build_key() -> str:
    """Return the hash that names a build: the installed files, this module and the C source."""
    digest = hashlib.sha256(_FORMAT.encode())
    for source in (RUNTIME_SOURCE, Path(__file__)):
        digest.update(source.read_bytes())
    for distribution in ("torch", "torch-npu"):
        try:
            files = metadata.distribution(distribution)
        except metadata.PackageNotFoundError as error:
            raise SimulatorError(f"{distribution} is not installed") from error
        digest.update(f"{distribution} {files.version}".encode())
    digest.update(
        (find_package("torch_npu").parent.joinpath("torch_npu", "version.py")).read_bytes()
    )
    digest.update(sys.version.encode())
    return digest.hexdigest()[:24]


def cache_folder() -> Path:
    """Return the folder that holds the builds: ASCEND_SIM_CACHE, else in the user's cache."""
    chosen = os.environ.get("ASCEND_SIM_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("ascend_sim"))


def ensure_libraries() -> Path:
    """Return the folder of the stand-in libraries, building them first where they are not there.

    Raises:
        SimulatorError: a compiler or binutils is missing, or the build failed.
    """
    root = cache_folder()
    folder = root / build_key()
    if (folder / "stub.json").is_file():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{folder.name}.lock"):
        if not (folder / "stub.json").is_file():
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                work = Path(scratch, "libraries")
                work.mkdir()
                build_libraries(work)
                if folder.exists():
                    shutil.rmtree(folder)
                work.replace(folder)
    return folder


def build_libraries(folder: Path) -> None:
    """Build every stand-in library into `folder`, with `stub.json` written last."""
    compiler = _require_program(os.environ.get("CC") or "cc", "gcc")
    libraries = sorted(find_package("torch_npu").rglob("*.so"))
    sonames = _find_missing_libraries(libraries)
    missing = _find_missing_symbols(libraries)
    runtime = RUNTIME_SOURCE.read_text(encoding="utf-8")
    written = set(re.findall(r"^(?:EXPORT [^(]*?\b|REFUSE\()(\w+)[()]", runtime, re.MULTILINE))
    generated = sorted(missing - written)
    source = folder / "cann.c"
    source.write_text(runtime + _generate_functions(generated), encoding="utf-8")
    (folder / "empty.c").write_text("typedef int none;\n", encoding="utf-8")
    main = folder / MAIN_LIBRARY
    _run(
        compiler, "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{MAIN_LIBRARY}", "-o", main, source
    )
    link = ["-Wl,--no-as-needed", f"-L{folder}", "-lascendcl"]
    for soname in sorted(sonames - {MAIN_LIBRARY}):
        _run(compiler, "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", folder / soname,
             folder / "empty.c", *link)  # fmt: skip
    record = {
        "sonames": sorted(sonames | {MAIN_LIBRARY}),
        "written": sorted(written),
        "harmless": [name for name in generated if _HARMLESS.match(name)],
        "refused": [name for name in generated if not _HARMLESS.match(name)],
    }
    (folder / "stub.json").write_text(json.dumps(record, indent=1), encoding="utf-8")


def _generate_functions(names: list[str]) -> str:
    """Return C definitions of the functions that runtime.c leaves out."""
    lines = ["", "/* Generated: symbols of the installed torch_npu that nothing else defines. */"]
    for number, name in enumerate(names):
        body = "0" if _HARMLESS.match(name) else f'ascend_sim_refuse("{name}")'
        lines.append(
            f'EXPORT long generated_{number}(void) __asm__("{name}"); '
            f"long generated_{number}(void) {{ return {body}; }}"
        )
    return "\n".join(lines) + "\n"


def _find_missing_libraries(libraries: list[Path]) -> set[str]:
    """Return the needed sonames that neither torch, torch_npu nor the system brings."""
    torch_libraries = find_package("torch") / "lib"
    brought = {file.name for file in libraries} | {file.name for file in torch_libraries.iterdir()}
    output = _run(_require_program("readelf", "binutils"), "-d", *libraries)
    needed = set(re.findall(r"NEEDED.*\[(.+?)\]", output))
    return {name for name in needed - brought if not _SYSTEM_LIBRARY.match(name)}


def _find_missing_symbols(libraries: list[Path]) -> set[str]:
    """Return the undefined symbols that neither torch, Python nor the system defines."""
    nm = _require_program("nm", "binutils")
    torch_libraries = sorted((find_package("torch") / "lib").glob("*.so*"))
    undefined = _list_symbols(_run(nm, "-D", "--undefined-only", *libraries))
    defined = _list_symbols(_run(nm, "-D", "--defined-only", *libraries, *torch_libraries))
    defined |= _list_symbols(_run(nm, "-D", "--defined-only", *_find_process_libraries()))
    return undefined - defined


def _find_process_libraries() -> list[Path]:
    """Return the interpreter and the shared libraries that it has loaded (libc, libpython, ...)."""
    mapped = re.findall(r"(/\S*\.so[.\d]*)$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    system = {
        Path(path) for path in mapped if not re.search(r"(site|dist)-packages|lib-dynload", path)
    }
    return [Path(sys.executable).resolve(), *sorted(path for path in system if path.is_file())]


def _list_symbols(output: str) -> set[str]:
    """Return the symbol names in nm's output, without weak references and versioned imports."""
    names = set()
    for line in output.splitlines():
        fields = line.split()
        if len(fields) < 2 or (fields[-2] in "wv" and len(fields) == 2):
            continue
        name, _, version = fields[-1].partition("@")
        if not (fields[-2] == "U" and version):
            names.add(name)
    return names


def _require_program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SimulatorError(
            f"{name} was not found; install {package} to build the stand-in libraries"
        )
    return path


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    if done.returncode and not done.stdout:
        raise SimulatorError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
