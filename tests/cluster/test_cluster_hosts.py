"""`verify --hosts` against a real sshd, and against hosts that are not well."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.small_build import MLP, World, write_overlays
from mindspeed_overlay.cluster.hosts import HostReport, HostsRun, compare_hosts, read_hosts
from mindspeed_overlay.errors import UsageError

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A client command whose configuration knows good and bad hosts; an sshd behind the good."""
    if SSHD is None or os.getuid() != 0:
        pytest.skip("a real sshd needs root and openssh-server: apt-get install openssh-server")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user", "stranger"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(keygen, check=True)
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    port = free_port()
    (folder / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile {folder}/pid\n"
        f"AuthorizedKeysFile {folder}/authorized\nUsePAM no\nStrictModes no\n"
        "PermitRootLogin yes\nPasswordAuthentication yes\n"
    )
    known = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known").write_text(f"[127.0.0.1]:{port} {known}\n")
    (folder / "unknown").write_text("")
    silent = socket.create_server(("127.0.0.1", 0))
    common = f"HostName 127.0.0.1\nPort {port}\nUser root\nIdentitiesOnly yes\n"
    trusted = f"UserKnownHostsFile {folder}/known\nStrictHostKeyChecking yes\n"
    (folder / "config").write_text(
        f"Host good* odd* bare hang-late\n{common}{trusted}IdentityFile {folder}/user\n"
        f"Host password\n{common}{trusted}IdentityFile {folder}/stranger\n"
        f"Host stranger\n{common}UserKnownHostsFile {folder}/unknown\n"
        f"StrictHostKeyChecking yes\nIdentityFile {folder}/user\n"
        f"Host refused\nHostName 127.0.0.1\nPort {free_port()}\n"
        f"Host silent\nHostName 127.0.0.1\nPort {silent.getsockname()[1]}\n"
        "GlobalKnownHostsFile /dev/null\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([SSHD, "-D", "-q", "-f", str(folder / "sshd")])
    try:
        while server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield f"ssh -F {folder}/config"
    finally:
        server.terminate()
        server.wait(timeout=20)
        silent.close()


@pytest.fixture
def dist(small_world: World) -> Path:
    out = small_world.folder / "dist"
    return small_world.build(out)[0] if not out.exists() else sorted(out.glob("*.whl"))[0]


def test_a_table_tells_every_host_and_the_odd_one_is_named(
    ssh: str, small_world: World, dist: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    write_overlays(small_world.overlays, value="three")
    other = small_world.build(small_world.folder / "other")[0]
    write_overlays(small_world.overlays)
    good, odd = install(dist), install(other, name="odd")
    (tmp_path / "hosts").write_text(
        f"# training\ngood1\ngood2 cwd=/\nodd python={odd}  # another build\n"
    )
    words = ("verify", "--hosts", tmp_path / "hosts", "--python", good, "--ssh", ssh)
    done = small_world.call(*words, check=False)
    assert done.code == 9
    rows = [line.split() for line in done.out.splitlines()]
    assert [row[:2] for row in rows[1:4]] == [["good1", "ok"], ["good2", "ok"], ["odd", "differs"]]
    assert rows[1][2] == dist.name.split("-")[1]
    assert "2 of 3 hosts are as recorded and alike" in done.out
    assert "error[E923] odd: build is" in done.err
    (tmp_path / "hosts").write_text(f"good1 python={odd}\n")
    lock = dist.with_name("build.lock.json")
    strict = small_world.call(*words, "--lock", lock, "--json", check=False)
    assert strict.code == 9
    table = json.loads(strict.out)
    assert table["hosts"][0]["problems"][0]["code"] == "E906"


def test_hosts_that_are_not_well_are_told_apart_and_hold_nobody_up(
    ssh: str, small_world: World, dist: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    python = install(dist)
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o755)
    (tmp_path / "hosts").write_text(
        f"good\nrefused\nsilent\npassword\nstranger\nbare python=/nonexistent/python\n"
        f"hang-late python={sleeper}\nno.such.host.invalid\n"
    )
    words = ("--hosts", tmp_path / "hosts", "--python", python, "--ssh", ssh, "--timeout", 6)
    done = small_world.call("verify", *words, "--json", check=False)
    assert done.code == 9
    reports = {row["host"]: row for row in json.loads(done.out)["hosts"]}
    assert {host: row["state"] for host, row in reports.items()} == {
        "good": "ok",
        "refused": "unreachable",
        "silent": reports["silent"]["state"],
        "password": "unreachable",
        "stranger": "unreachable",
        "bare": "no python",
        "hang-late": "hangs",
        "no.such.host.invalid": "unreachable",
    }
    assert reports["silent"]["state"] in ("unreachable", "hangs")
    said = {host: row["problems"][0]["message"] for host, row in reports.items() if host != "good"}
    assert "Connection refused" in said["refused"]
    assert "Permission denied" in said["password"]
    assert "Host key verification failed" in said["stranger"]
    assert "exit code 127" in said["bare"]
    assert "no answer within 6 s" in said["hang-late"]


def test_a_changed_file_on_a_host_is_named_with_host_and_overlay(
    ssh: str, small_world: World, dist: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    python = install(dist)
    site = next((python.parents[1] / "lib").glob("python*/site-packages"))
    (site / MLP).write_text("changed = True\n")
    (tmp_path / "hosts").write_text("good\n")
    words = ("--hosts", tmp_path / "hosts", "--python", python, "--ssh", ssh)
    done = small_world.call("verify", *words, check=False)
    assert done.code == 9
    assert f"base/small: good: {MLP}: is not what RECORD says" in done.err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("-oProxyCommand=x\n", ":1:"),
        ("a\na\n", "a is listed twice"),
        ("a\nb user=root\n", ":2:"),
        ("a python\n", ":1:"),
        ("# nothing\n", "names no host"),
    ],
)
def test_a_malformed_hosts_file_is_refused(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UsageError, match=r"E213") as caught:
        read_hosts(tmp_path / "hosts")
    assert line in str(caught.value)


def test_no_more_hosts_are_asked_at_once_than_told(tmp_path: Path) -> None:
    """The client here counts how many of it run."""
    client = tmp_path / "client.py"
    client.write_text(
        "import os, pathlib, sys, time\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "mine = here / f'running.{os.getpid()}'\n"
        "mine.touch()\n"
        "count = len(list(here.glob('running.*')))\n"
        "(here / f'seen.{os.getpid()}').write_text(str(count))\n"
        "sys.stdin.read()\n"
        "mine.unlink()\n"
        "sys.exit(255)\n"
    )
    (tmp_path / "hosts").write_text("".join(f"host{n}\n" for n in range(12)))
    run = HostsRun(ssh=f"{sys.executable} -S {client}", parallel=3, timeout_s=60)
    reports = run.verify(read_hosts(tmp_path / "hosts"))
    assert [report.host.name for report in reports] == [f"host{n}" for n in range(12)]
    seen = [int(path.read_text()) for path in tmp_path.glob("seen.*")]
    assert len(seen) == 12
    assert max(seen) <= 3


def test_versions_that_may_differ_are_warnings(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\nb\nc\n")
    hosts = read_hosts(tmp_path / "hosts")
    facts = dict.fromkeys(("build", "torch", "torch-npu", "machine", "cann", "numpy", "triton"), "")
    reports = [HostReport(h, "ok", facts={**facts, "python": "3.10.1"}) for h in hosts[:2]]
    reports.append(HostReport(hosts[2], "ok", facts={**facts, "python": "3.11.2"}))
    compared = compare_hosts(reports)
    assert [report.state for report in compared] == ["ok"] * 3
    assert compared[2].warnings == ("python is 3.11.2, on most hosts 3.10.1",)
