"""`publish`: an index that pip and uv install from, whoever reads or dies meanwhile."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builders import make_wheel, mount_tiny
from cluster.small_build import World, make_world, write_overlays
from mindspeed_overlay.cluster.publish import publish, read_upload
from mindspeed_overlay.tree import sha256

TOOLS = Path(__file__).parents[2] / "tools"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
SNIPPET = Path(__file__).parents[2] / "docs/cluster/nginx-index.conf"
OTHER_HASH = "(?i)hash mismatch|not match the hashes"  # uv, pip
JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def dist(world: World) -> list[Path]:
    return world.build(world.folder / "dist")


@pytest.fixture
def index(world: World, dist: list[Path], tmp_path: Path) -> Path:
    world.call("publish", *dist, "--index", tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin/python"


def install(python: Path, index: str, *words: object, client: str = "pip") -> str:
    """Install megatron-core from an index into the environment of `python`; what was said."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-cache-dir"]
    uv = [sys.executable, "-m", "uv", "pip", "install", "--no-cache", "--python", str(python)]
    command = [*(pip if client == "pip" else uv), "--index-url", index, "--no-deps"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    done = subprocess.run(
        [*command, "--reinstall" if client == "uv" else "--force-reinstall", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**clean, "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"},
    )
    said = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(said)
    return said


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_a_folder_installs_with_hashes_checked(
    world: World, dist: list[Path], index: Path, python: Path, client: str
) -> None:
    version = dist[0].name.split("-")[1]
    constraints = index / f"constraints/megatron-core-{version}.txt"
    address = f"file://{index}/simple"
    install(python, address, "-r", constraints, client=client)
    lock = dist[0].with_name("build.lock.json")
    world.call("verify", "--installed", "--python", python, "--lock", lock)
    constraints.write_text(f"megatron-core=={version} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(RuntimeError, match=OTHER_HASH):
        install(python, address, "-r", constraints, client=client)


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_a_file_changed_after_publishing_is_refused(
    index: Path, python: Path, dist: list[Path], client: str
) -> None:
    wheel = index / "files" / dist[0].name
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.comment = b"a sound archive of other bytes"
    constraints = index / f"constraints/megatron-core-{wheel.name.split('-')[1]}.txt"
    with pytest.raises(RuntimeError, match=OTHER_HASH):
        install(python, f"file://{index}/simple", "-r", constraints, client=client)


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_old_builds_stay_and_a_yanked_one_is_passed_over(
    world: World, dist: list[Path], index: Path, python: Path, client: str
) -> None:
    write_overlays(world.overlays, value="three")
    newer = world.build(world.folder / "newer")
    write_overlays(world.overlays)
    world.call("publish", *newer, "--index", index)
    first, second = (paths[0].name.split("-")[1] for paths in (dist, newer))
    address = f"file://{index}/simple"
    for version in (first, second) if client == "uv" else ():
        constraints = index / f"constraints/megatron-core-{version}.txt"
        words = ("-c", constraints, "megatron-core")
        assert version in install(python, address, *words, client=client)
    newest, other = max(first, second), min(first, second)
    world.call("publish", "--index", index, "--yank", newest, "--reason", "bad & <slow>")
    assert other in install(python, address, "megatron-core", client=client)
    if client == "uv":
        assert newest in install(python, address, f"megatron-core=={newest}", client=client)
    world.call("publish", "--index", index, "--unyank", newest)
    assert newest in install(python, address, "megatron-core", client=client)


def test_publishing_again_changes_nothing(world: World, dist: list[Path], index: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        found = [p for p in index.rglob("*") if p.is_file() and p.name != ".publish.lock"]
        return {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}

    before = state()
    world.call("publish", *dist, "--index", index)
    assert state() == before


def test_pages_agree_with_each_other_and_with_the_files(index: Path) -> None:
    table = json.loads((index / "simple/megatron-core/index.json").read_text())
    page = (index / "simple/megatron-core/index.html").read_text()
    assert len(table["files"]) == 4
    for row in table["files"]:
        wheel = index / "files" / row["filename"]
        assert sha256(wheel.read_bytes()) == row["hashes"]["sha256"]
        metadata = wheel.with_name(f"{wheel.name}.metadata").read_bytes()
        assert sha256(metadata) == row["core-metadata"]["sha256"]
        assert f"#sha256={row['hashes']['sha256']}" in page
        assert f'data-core-metadata="sha256={row["core-metadata"]["sha256"]}"' in page
        assert row["requires-python"] == ">=3.10"
    assert "&gt;=3.10" in page
    assert "%2B" in page


def test_a_wheel_that_is_not_its_locks_is_not_published(
    world: World, dist: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "dist").mkdir()
    for path in (dist[0], dist[0].with_name("build.lock.json")):
        shutil.copy(path, tmp_path / "dist")
    wheel = tmp_path / "dist" / dist[0].name
    wheel.write_bytes(wheel.read_bytes()[:2000])
    done = world.call("publish", wheel, "--index", tmp_path / "index", check=False)
    assert done.code == 9
    assert "E906" in done.err
    assert "E901" in done.err
    assert not (tmp_path / "index").exists()


def test_a_published_name_never_changes_its_bytes(
    world: World, index: Path, dist: list[Path], tmp_path: Path
) -> None:
    upload = read_upload(dist[0])
    page = (index / "simple/megatron-core/index.json").read_bytes()
    from dataclasses import replace

    other = replace(upload, entry=replace(upload.entry, sha256="0" * 64), data=b"other")
    from mindspeed_overlay.errors import PackagingError

    with pytest.raises(PackagingError, match="E712"):
        publish(index, [other])
    assert (index / "simple/megatron-core/index.json").read_bytes() == page
    assert (index / "files" / dist[0].name).read_bytes() == upload.data


def test_a_second_index_slips_in_an_unpatched_core_and_constraints_keep_it_out(
    index: Path, python: Path, dist: list[Path], tmp_path: Path
) -> None:
    newer = make_wheel(tmp_path, tag="py3-none-any", version="0.2.0")
    publish(tmp_path / "public", [read_upload(newer)])
    address = f"file://{index}/simple"
    public = ("--extra-index-url", f"file://{tmp_path}/public/simple", "megatron-core>=0.1.0")
    best = ("--index-strategy", "unsafe-best-match")  # what pip always does
    assert "0.2.0" in install(python, address, *public, *best, client="uv")
    probe = subprocess.run([python, "-m", "mindspeed.verify"], capture_output=True, check=False)
    assert probe.returncode != 0
    version = dist[0].name.split("-")[1]
    constraints = ("-c", index / f"constraints/megatron-core-{version}.txt")
    assert version in install(python, address, *public, *best, *constraints, client="uv")


def test_an_index_read_while_it_is_written_is_whole(dist: list[Path], tmp_path: Path) -> None:
    publish(tmp_path, [read_upload(dist[0])])
    seen, done = set(), threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(len(check_links(tmp_path)))

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for path in dist[1:]:
            publish(tmp_path, [read_upload(path)])
        done.set()
        reader.result(timeout=60)
    assert len(check_links(tmp_path)) == 4
    assert seen


PUBLISH = """
import sys
from pathlib import Path
from mindspeed_overlay.cluster.publish import publish, read_upload
uploads = [read_upload(Path(p)) for p in sys.argv[2:]]
print("ready", flush=True)
sys.stdin.readline()
publish(Path(sys.argv[1]), uploads)
"""


def test_two_publishers_at_once_lose_nothing(dist: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", PUBLISH, str(tmp_path / "index")]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    running = [
        subprocess.Popen(
            [*command, str(path)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for path in dist
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    table = json.loads((tmp_path / "index/simple/megatron-core/index.json").read_text())
    assert sorted(row["filename"] for row in table["files"]) == sorted(p.name for p in dist)


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from mindspeed_overlay.cluster.publish import publish, read_upload
root, old, new = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
uploads = [read_upload(Path(p)) for p in new]
publish(root / "first", [read_upload(Path(old))])
step, status = 0, -1
while status:
    step += 1
    index = root / f"{step:03}"
    shutil.copytree(root / "first", index)
    child = os.fork()
    if not child:
        seen = 0
        def hook(event, args):
            global seen
            flags = args[2] if event == "open" and isinstance(args[2], int) else 0
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            if writes or event in ("os.rename", "os.mkdir", "os.chmod"):
                seen += 1
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        publish(index, uploads)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
"""


def check_links(index: Path) -> set[str]:
    """Every link of the index must work; returns the listed files."""
    listed = set()
    for page in index.glob("simple/*/index.json"):
        for row in json.loads(page.read_text())["files"]:
            wheel = index / "files" / row["filename"]
            assert sha256(wheel.read_bytes()) == row["hashes"]["sha256"]
            metadata = wheel.with_name(f"{wheel.name}.metadata").read_bytes()
            assert sha256(metadata) == row["core-metadata"]["sha256"]
            listed.add(row["filename"])
    return listed


def test_a_publisher_killed_at_any_step_leaves_an_index_that_works(
    dist: list[Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), *map(str, dist[:2])]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    places = sorted(tmp_path.iterdir())
    assert len(places) > 10
    sizes, known = set(), set()
    for place in places:
        listed = check_links(place)
        assert dist[0].name in listed
        sizes.add(len(listed))
        left = [path for path in place.rglob("*") if path.name != "lock"]
        state = frozenset(
            (re.sub("staging-[^/]*", "", str(path.relative_to(place))), path.lstat().st_size)
            for path in left
        )
        if state in known:  # the same files as after an earlier kill
            continue
        known.add(state)
        publish(place, [read_upload(dist[1])])
        assert check_links(place) == {dist[0].name, dist[1].name}
        assert not list(place.rglob(".*.staging-*"))
    assert sizes == {1, 2}


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with mount_tiny(tmp_path / "tiny", "1m") as folder:
        yield folder


def test_a_full_disk_leaves_what_was_published(
    world: World, dist: list[Path], tiny_disk: Path
) -> None:
    world.call("publish", dist[0], "--index", tiny_disk)
    before = check_links(tiny_disk)
    (tiny_disk / "ballast").write_bytes(b"x" * (os.statvfs(tiny_disk).f_bavail - 1) * 4096)
    done = world.call("publish", *dist, "--index", tiny_disk, check=False)
    assert done.code == 7
    assert "E713" in done.err
    assert check_links(tiny_disk) == before == {dist[0].name}


@pytest.fixture
def server(index: Path, tmp_path: Path) -> Iterator[str]:
    """A real nginx with the snippet of the docs; its address."""
    if NGINX is None:
        pytest.skip("there is no nginx here: apt-get install nginx-light")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    snippet = SNIPPET.read_text().replace("/srv/wheels", str(index))
    assert "listen 8080;" in snippet
    (tmp_path / "index.conf").write_text(
        snippet.replace("listen 8080;", f"listen 127.0.0.1:{port};")
    )
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off;\npid {tmp_path}/pid;\nuser root;\nerror_log {tmp_path}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}\ninclude {tmp_path}/index.conf;\n}}\n"
    )
    command = [NGINX, "-e", f"{tmp_path}/error.log", "-c", f"{tmp_path}/nginx.conf"]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    process = subprocess.Popen(command)
    try:
        for _ in range(1000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield f"http://127.0.0.1:{port}/simple"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


def ask(address: str, accept: str) -> tuple[str, bytes]:
    request = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read()


def test_nginx_serves_both_forms_and_pip_and_uv_install(
    server: str, index: Path, python: Path, dist: list[Path]
) -> None:
    page = f"{server}/megatron-core/"
    kind, body = ask(page, f"{JSON}, text/html; q=0.1")
    assert kind == JSON
    assert body == (index / "simple/megatron-core/index.json").read_bytes()
    kind, body = ask(page, "text/html")
    assert kind.startswith("text/html")
    assert body == (index / "simple/megatron-core/index.html").read_bytes()
    assert ask(f"{server}/", JSON)[1] == (index / "simple/index.json").read_bytes()
    version = dist[0].name.split("-")[1]
    for client in ("pip", "uv"):
        assert version in install(python, server, "megatron-core", client=client)
