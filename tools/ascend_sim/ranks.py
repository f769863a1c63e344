"""Run a function on N ranks without paying for the imports N times.

A fork server is a process that imports torch, torch_npu and whatever else is asked for once,
touches no device and starts no thread, and forks N rank processes for each call. A rank gets the
environment that torchrun gives, its own device and, if a backend is named, an initialised default
process group. The first rank that fails fails the call, with its traceback; a call that takes too
long fails with the Python stacks of every rank.

What a rank runs is found again by name in the rank process: a module-level function, as
`"module:function"` or as the function itself. Arguments and results are pickled; device tensors in
results arrive as CPU tensors.
"""

import atexit
import importlib
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

DEFAULT_PRELOAD = ("ascend_sim.ranks:prepare_device",)
"""What a server imports unless told otherwise; `module:function` is imported and called."""

_PACKAGE_ROOT = str(Path(__file__).resolve().parent.parent)
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {0} import main;"
_BOOT += " main(sys.argv[2:])"
# One thread a rank: a forked OpenMP or BLAS pool has lost its threads, and the ranks share the
# cores anyway.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "GLOO_SOCKET_IFNAME": "lo",
}
_LOST_PEER = re.compile(r"^RuntimeError: .*Connection (reset|closed) by peer", re.MULTILINE)
_GRACE_S = 15.0  # for the server to collect stacks and kill the ranks, after a call's own limit


def prepare_device() -> None:
    """Import torch_npu: on the real device where there is one, else on the simulated one."""
    import ascend_sim
    from ascend_sim.autoload import has_cann

    if has_cann():
        importlib.import_module("torch_npu")
    else:
        ascend_sim.install()


class RankError(AssertionError):
    """At least one rank failed, died or hung.

    Attributes:
        failures: rank to its report: traceback, signal or stacks, then what it printed.
    """

    def __init__(self, summary: str, failures: Mapping[int, str]) -> None:
        reports = (f"--- rank {rank} ---\n{failures[rank].rstrip()}" for rank in sorted(failures))
        super().__init__("\n".join([summary, *reports]))
        self.failures = dict(failures)


@dataclass(frozen=True)
class Target:
    """Where a function is found in another process."""

    module: str
    qualname: str
    file: str = ""
    rewrite_asserts: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any] | str, *, rewrite_asserts: bool = False) -> "Target":
        """Name `function` so that another process can find it.

        Args:
            function: a module-level function, or `"module:function"`.
            rewrite_asserts: let failing asserts in its module show their operands, as in pytest.

        Raises:
            ValueError: a lambda or a function inside a function, which no other process can find.
        """
        if isinstance(function, str):
            module, _, qualname = function.partition(":")
            if not qualname:
                raise ValueError(f"target {function!r} is not of the form 'module:function'")
            return cls(module, qualname)
        if "<" in function.__qualname__:
            raise ValueError(
                f"{function.__module__}.{function.__qualname__} cannot run on ranks:"
                " other processes find only module-level functions"
            )
        file = getattr(sys.modules.get(function.__module__), "__file__", None) or ""
        return cls(function.__module__, function.__qualname__, file, rewrite_asserts)


@dataclass(frozen=True)
class Call:
    """One function call on every rank."""

    target: Target
    world_size: int
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    backend: str | None = "hccl"
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Outcome:
    """What became of one rank: its pickled result, or a report of its failure."""

    rank: int
    result: bytes | None = None
    failure: str = ""
    hung: bool = False
    aborted: bool = False  # ended by the server because another rank had failed


class ForkServer:
    """A process that has the imports done and forks ranks.

    Args:
        path: put before this process's own `sys.path` in the server; decides which Megatron is
        imported.
        preload: modules to import once; `module:function` is imported and called.
        env: environment variables of the server and its ranks, on top of this process's.
        start: `fork`, `spawn` (a fresh interpreter for each rank, slow), or `auto`: fork unless the
            preloaded modules run threads or use the device, which no fork survives.
    """

    def __init__(
        self,
        *,
        path: Sequence[str] = (),
        preload: Sequence[str] = DEFAULT_PRELOAD,
        env: Mapping[str, str] | None = None,
        start: str = "auto",
    ) -> None:
        if start not in ("auto", "fork", "spawn"):
            raise ValueError(f"start={start!r}: must be 'auto', 'fork' or 'spawn'")
        self.path = tuple(path)
        self.preload = tuple(preload)
        self.env = dict(env or {})
        self.start = start
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def run(
        self,
        target: Callable[..., Any] | str | Target,
        *args: Any,
        world_size: int,
        kwargs: Mapping[str, Any] | None = None,
        backend: str | None = "hccl",
        timeout_s: float = 60.0,
    ) -> list[Any]:
        """Call `target(*args, **kwargs)` on ranks 0 to `world_size - 1`.

        Args:
            target: a module-level function or `"module:function"`.
            args: pickled to every rank, as are `kwargs`.
            world_size: number of ranks.
            kwargs: keyword arguments of `target`.
            backend: initialise the default process group with it; None leaves that to `target`.
            timeout_s: a call that is not over then fails with the stacks of its ranks.

        Returns:
            The ranks' results, in order of rank.

        Raises:
            RankError: a rank raised, died or hung.
        """
        found = target if isinstance(target, Target) else Target.of(target)
        pairs = tuple((kwargs or {}).items())
        outcomes = self._ask(Call(found, world_size, args, pairs, backend, timeout_s))
        _raise_failures(found, outcomes, timeout_s)
        return [pickle.loads(outcome.result or b"") for outcome in outcomes]

    def close(self) -> None:
        """End the server; a later `run` starts a new one."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._connection = self._process = None

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, call: Call) -> list[Outcome]:
        connection = self._connected()
        try:
            connection.send(call)
            if not connection.poll(call.timeout_s + _GRACE_S):
                raise RankError("the fork server itself hangs", {})
            reply = connection.recv()
        except EOFError:
            self.close()
            raise RankError("the fork server died; its messages are on stderr", {}) from None
        except BaseException:  # an interrupt too: the ranks of a half-done call must not live on
            if self._process is not None:
                self._process.send_signal(signal.SIGKILL)
            self.close()
            raise
        assert isinstance(reply, list)
        return reply

    def _connected(self) -> Connection:
        if self._connection is not None:
            return self._connection
        ours, theirs = socket.socketpair()
        path = [*self.path, *sys.path]
        if _PACKAGE_ROOT not in path:
            path.append(_PACKAGE_ROOT)
        boot = _BOOT.format("ascend_sim.rank_server")
        command = [sys.executable, "-c", boot, json.dumps(path), str(theirs.fileno()), self.start]
        self._process = subprocess.Popen(
            [*command, *self.preload],
            env={**os.environ, **_ENVIRONMENT, **self.env},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        try:
            failure = self._connection.recv()
        except EOFError:
            failure = "it died while importing; its messages are on stderr"
        if failure:
            self.close()
            raise RankError(
                f"the fork server could not import {', '.join(self.preload)}", {-1: failure}
            )
        return self._connection


def _raise_failures(target: Target, outcomes: Sequence[Outcome], timeout_s: float) -> None:
    failures = {o.rank: o.failure for o in outcomes if o.failure and not o.aborted}
    if not failures:
        return
    # Ranks whose peer died say only that; they are dropped where a rank says more.
    causes = {rank: text for rank, text in failures.items() if not _LOST_PEER.search(text)}
    failures = causes or failures
    hung = sorted(o.rank for o in outcomes if o.hung)
    what = f"{target.module}.{target.qualname} on {len(outcomes)} ranks"
    if hung:
        summary = f"{what}: ranks {hung} did not finish within {timeout_s:g} s"
    else:
        summary = f"{what}: rank {', '.join(map(str, sorted(failures)))} failed"
    raise RankError(summary, failures)


_servers: dict[tuple[Any, ...], ForkServer] = {}


def server(
    *,
    path: Sequence[str] = (),
    preload: Sequence[str] = DEFAULT_PRELOAD,
    env: Mapping[str, str] | None = None,
) -> ForkServer:
    """This process's server for a path, preload list and environment; ended at exit."""
    key = (tuple(path), tuple(preload), tuple(sorted((env or {}).items())))
    if key not in _servers:
        _servers[key] = ForkServer(path=path, preload=preload, env=env)
        atexit.register(_servers[key].close)
    return _servers[key]


def run(
    function: Callable[..., Any] | str,
    world_size: int,
    *args: Any,
    timeout_s: float = 60.0,
    backend: str | None = "hccl",
    preload: Sequence[str] = DEFAULT_PRELOAD,
) -> list[Any]:
    """Call `function(*args)` on `world_size` ranks of a shared server; see `ForkServer.run`."""
    shared = server(preload=preload)
    return shared.run(function, *args, world_size=world_size, backend=backend, timeout_s=timeout_s)
