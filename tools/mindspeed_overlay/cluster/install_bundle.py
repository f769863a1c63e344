"""Install the wheels of this bundle, after proving that every file in it is what was meant.

    echo "HASH  SHA256SUMS" | sha256sum -c && sha256sum -c --quiet SHA256SUMS
    python3 install.py --sha256 HASH            (or --key team.pub.pem)
    python3 install.py --undo

HASH is that of SHA256SUMS as the person who made the bundle tells it, or the key theirs: what comes
with a bundle proves nothing about it. The first line checks this script, too, before it runs.

Standard library and the pip of the interpreter only; Python 3.8 or newer. What is replaced is kept
under `share/mindspeed-bundle` of the environment, and `--undo` puts it back file by file.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUMS = "SHA256SUMS"


class Refused(Exception):
    """Why nothing was done."""


def main() -> int:
    """Run, and tell what happened in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sha256", metavar="HASH", help="SHA-256 of SHA256SUMS, from elsewhere")
    parser.add_argument("--key", type=Path, help="public key (PEM) of who signed the bundle")
    parser.add_argument("--python", default=sys.executable, help="whose environment to change")
    parser.add_argument("--no-dependencies", action="store_true", help="install ours only")
    parser.add_argument("--check-only", action="store_true", help="verify, and install nothing")
    parser.add_argument("--undo", action="store_true", help="put back what the install replaced")
    chosen = parser.parse_args()
    if Path(chosen.python).resolve() != Path(sys.executable).resolve():
        os.execv(chosen.python, [chosen.python, str(HERE / "install.py"), *sys.argv[1:]])
    try:
        if chosen.undo:
            print(f"undone: {undo()}")
            return 0
        verify(chosen.sha256, chosen.key)
        print("the bundle is what was meant")
        if not chosen.check_only:
            print(f"installed: {install(with_dependencies=not chosen.no_dependencies)}")
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


def verify(expected: str | None, key: Path | None) -> None:
    """Prove SHA256SUMS by a hash or a key from elsewhere, and every file by SHA256SUMS."""
    if not (expected or key):
        raise Refused("give --sha256 HASH or --key FILE, from elsewhere than this bundle")
    sums = (HERE / SUMS).read_bytes()
    if expected and hashlib.sha256(sums).hexdigest() != expected.strip().lower():
        raise Refused(f"{SUMS} has another hash than {expected}")
    if key and not is_signed(HERE / SUMS, HERE / f"{SUMS}.sig", key):
        raise Refused(f"{SUMS} is not signed by the owner of {key}")
    recorded = {line[66:]: line[:64] for line in sums.decode().splitlines()}
    own = {SUMS, f"{SUMS}.sig"}
    present = {p.relative_to(HERE).as_posix() for p in HERE.rglob("*") if not p.is_dir()} - own
    present = {name for name in present if "__pycache__" not in name}
    wrong = [f"missing {name}" for name in sorted(set(recorded) - present)]
    wrong += [f"added {name}" for name in sorted(present - set(recorded))]
    wrong += [
        f"changed {name}"
        for name in sorted(present & set(recorded))
        if (HERE / name).is_symlink() or hash_file(HERE / name) != recorded[name]
    ]
    if wrong:
        raise Refused(", ".join(wrong))


def hash_file(path: Path) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_signed(data: Path, signature: Path, key: Path) -> bool:
    """An Ed25519 signature, checked by `cryptography` where it is installed, else by openssl."""
    if not signature.is_file():
        return False
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(key), "-rawin"]
        command += ["-in", str(data), "-sigfile", str(signature)]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError as error:
            raise Refused("a key needs the package `cryptography`, or openssl 3") from error
    public = load_pem_public_key(key.read_bytes())
    if not isinstance(public, Ed25519PublicKey):
        raise Refused(f"{key} is no Ed25519 key")
    try:
        public.verify(signature.read_bytes(), data.read_bytes())
    except InvalidSignature:
        return False
    return True


def install(*, with_dependencies: bool) -> str:
    """Keep what will be replaced, then have pip install exactly the wheels of the bundle."""
    manifest = json.loads((HERE / "bundle.json").read_text("utf-8"))
    names = {"megatron-core": manifest["version"]}
    if with_dependencies:
        names.update(manifest["dependencies"])
    kept = keep_replaced(names)
    lines = []
    for name, version in names.items():
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in manifest["hashes"][name])
        lines.append(f"{name}=={version} {hashes}\n")
    (kept / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-cache-dir"]
    command += ["--force-reinstall", "--require-hashes", "--disable-pip-version-check"]
    command += ["--find-links", str(HERE / "wheels"), "--find-links", str(HERE / "dependencies")]
    command += ["--requirement", str(kept / "requirements.txt")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    environment["PIP_CONFIG_FILE"] = os.devnull
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        undo()
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Refused(f"pip failed, and everything is as it was: {'; '.join(lines)}")
    return ", ".join(f"{name} {version}" for name, version in names.items())


def state_folder() -> Path:
    """Where replaced files are kept."""
    return Path(sys.prefix, "share", "mindspeed-bundle")


def site_folder() -> Path:
    """Where this interpreter's packages are."""
    return Path(sysconfig.get_path("purelib"))


def find_files(name: str) -> list[Path]:
    """The installed files of a distribution, under site-packages, by its RECORD."""
    found = []
    for info in site_folder().glob("*.dist-info"):
        project = info.name.split("-")[0].replace("_", "-").replace(".", "-").lower()
        if project != name:
            continue
        record = info / "RECORD"
        text = record.read_text("utf-8") if record.is_file() else ""
        listed = {site_folder() / row[0] for row in csv.reader(text.splitlines()) if row}
        listed.update(p for p in info.rglob("*") if p.is_file())
        listed.update(find_bytecode(listed))
        found += sorted(p for p in listed if p.is_file())
    return found


def find_bytecode(files: set[Path]) -> Iterator[Path]:
    """Bytecode beside the files: pip removes it with them."""
    for file in files:
        if file.suffix == ".py":
            yield from file.parent.glob(f"__pycache__/{file.stem}.*.pyc")


def keep_replaced(names: dict[str, str]) -> Path:
    """Copy the files of what will be replaced, with their times, into the state folder."""
    folder = state_folder()
    number = 1 + max((int(p.name) for p in folder.glob("[0-9]*")), default=0)
    partial, kept = folder / f".{number}.partial", folder / str(number)
    shutil.rmtree(partial, ignore_errors=True)
    site = site_folder()
    for name in names:
        for file in find_files(name):
            target = partial / "files" / os.path.relpath(file, site).replace("..", "__up__")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
    partial.mkdir(parents=True, exist_ok=True)
    (partial / "names.json").write_text(json.dumps(sorted(names)), encoding="utf-8")
    partial.rename(kept)
    return kept


def undo() -> str:
    """Remove what the last install brought, and put back what it replaced."""
    kept = max(state_folder().glob("[0-9]*"), key=lambda p: int(p.name), default=None)
    if kept is None:
        raise Refused(f"no install to undo is recorded in {state_folder()}")
    names = json.loads((kept / "names.json").read_text("utf-8"))
    for name in names:
        for file in find_files(name):
            file.unlink()
            remove_empty(file.parent)
    site = site_folder()
    for file in sorted((kept / "files").rglob("*")):
        if file.is_file():
            target = site / str(file.relative_to(kept / "files")).replace("__up__", "..")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
    shutil.rmtree(kept)
    return ", ".join(names)


def remove_empty(folder: Path) -> None:
    """Remove a folder under site-packages and its parents, as far as they are empty."""
    while folder != site_folder() and site_folder() in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


if __name__ == "__main__":
    sys.exit(main())
