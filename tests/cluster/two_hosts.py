"""Two hosts on one machine: network namespaces with a cable between, and names of their own."""

import contextlib
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

ADDRESSES = ("10.77.0.1", "10.77.0.2")
NAMES = ("node-a", "node-b")
_NUMBERS = itertools.count()


def run_ip(*words: str, check: bool = True) -> int:
    """Run `ip`; returns its exit code."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    command = ["ip", *words]
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done.returncode


@dataclass
class Running:
    """A program on a host, and what it has said so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _seen: threading.Condition = field(default_factory=threading.Condition)
    _listener: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as pipe:
            for line in pipe:
                with self._seen:
                    self.lines.append(line)
                    self._seen.notify_all()

    def wait_for(self, text: str, *, timeout_s: float) -> None:
        """Until it has said `text`."""
        with self._seen:
            heard = self._seen.wait_for(lambda: text in self.said, timeout_s)
        assert heard, self.said

    def finish(self, *, timeout_s: float) -> int:
        """Its exit code; it fails the test if it does not end."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {timeout_s} s: {self.said}") from None
        self.join()
        return code

    def join(self) -> None:
        """Until everything that it said is heard."""
        assert self._listener is not None
        self._listener.join(timeout=20)

    @property
    def said(self) -> str:
        """Everything so far."""
        return "".join(self.lines)


@dataclass
class TwoHosts:
    """The namespaces, and what runs in them."""

    spaces: tuple[str, str]
    running: list[Running] = field(default_factory=list)

    def start(self, host: int, *command: object, **environment: str) -> Running:
        """Start a program on host 0 or 1, under the host's own name."""
        script = f'hostname {NAMES[host]}; exec "$@"'
        words = ["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "bash", "-c"]
        words += [script, "bash", *map(str, command)]
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PATH": path, **environment},
            start_new_session=True,
        )
        running = Running(process)
        self.running.append(running)
        return running

    def cut(self) -> None:
        """Pull the cable."""
        run_ip("-n", self.spaces[1], "link", "set", "eth0", "down")

    def stop(self) -> None:
        """End everything that was started; launchers give their workers sessions of their own."""
        for space in self.spaces:
            listed = subprocess.run(
                ["ip", "netns", "pids", space], capture_output=True, text=True, check=False
            )
            for pid in listed.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for running in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()
            running.join()


@contextlib.contextmanager
def open_hosts() -> Iterator[TwoHosts]:
    """Two connected hosts; everything in them ends with the block."""
    mark = f"{os.getpid():x}.{next(_NUMBERS)}"
    spaces = (f"msa{mark}", f"msb{mark}")
    hosts = TwoHosts(spaces)
    try:
        for space in spaces:
            run_ip("netns", "add", space)
        cable = ("type", "veth", "peer", "name", "eth0", "netns", spaces[1])
        run_ip("-n", spaces[0], "link", "add", "eth0", *cable)
        for space, address in zip(spaces, ADDRESSES, strict=True):
            run_ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                run_ip("-n", space, "link", "set", link, "up")
        yield hosts
    finally:
        hosts.stop()
        for space in spaces:
            run_ip("netns", "del", space, check=False)


def can_make_hosts() -> bool:
    """Whether this user may make network namespaces, and iproute2 is installed."""
    space = f"mst{os.getpid():x}"
    try:
        made = run_ip("netns", "add", space, check=False) == 0
    except FileNotFoundError:
        return False
    if made:
        run_ip("netns", "del", space)
    return made


NEEDS_HOSTS = [
    pytest.mark.network,
    pytest.mark.skipif(not can_make_hosts(), reason="network namespaces need root and iproute2"),
]

__all__ = [
    "ADDRESSES",
    "NAMES",
    "NEEDS_HOSTS",
    "Running",
    "TwoHosts",
    "can_make_hosts",
    "open_hosts",
]
