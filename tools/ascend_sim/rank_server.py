"""The fork server's side of `ranks`: import once, then launch ranks for each call and collect their
outcomes.

Runs as a process of its own. It answers a `Call` with a list of `Outcome`s and ends when its client
is gone.
"""

import faulthandler
import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from ascend_sim.rank_process import RankPlace, run_rank
from ascend_sim.ranks import _BOOT, Call, Outcome

_FAILURE_GRACE_S = 1.0  # other ranks may be about to report the same failure
_STACKS_GRACE_S = 0.5  # faulthandler writes at once, from a signal handler
_REAP_S = 5.0  # a dying process may still be writing its core
_OUTPUT_LIMIT = 20_000  # characters of a rank's output that a report keeps


@dataclass
class _Rank:
    """A running rank as the server sees it."""

    place: RankPlace
    pid: int
    connection: Connection
    release: int  # closing it lets a finished rank exit
    output: Path
    outcome: Outcome | None = None
    stacks_asked: bool = False


def preload_modules(names: Sequence[str]) -> None:
    """Import each `module`, or import and call each `module:function`."""
    for name in names:
        module, _, function = name.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def can_fork() -> bool:
    """Whether what was preloaded survives a fork: threads and a device in use do not."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return False
    npu = sys.modules.get("torch_npu.npu")
    return npu is None or not npu.is_initialized()


def main(argv: Sequence[str]) -> None:
    """Serve calls on the socket `argv[0]`; `argv[1]` is how to start ranks, the rest imports."""
    connection = Connection(int(argv[0]))
    start, preload = argv[1], argv[2:]
    # Ranks are reaped here; a signal meant for the client's terminal must not kill the server
    # first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    try:
        if start != "spawn":
            preload_modules(preload)
    except BaseException:
        connection.send(traceback.format_exc())
        return
    if start == "auto":
        start = "fork" if can_fork() else "spawn"
    connection.send("")
    while True:
        try:
            call = connection.recv()
        except EOFError:
            return
        connection.send(serve(call, start=start, preload=preload))


def serve(call: Call, *, start: str, preload: Sequence[str]) -> list[Outcome]:
    """Run one call on its ranks; every rank process is gone when this returns."""
    message = pickle.dumps(call)
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(call.world_size * 8)
        ranks: list[_Rank] = []
        try:
            for index in range(call.world_size):
                place = RankPlace(index, call.world_size, listener.getsockname()[1])
                ranks.append(_launch(place, listener, Path(folder), start, preload, ranks))
                ranks[-1].connection.send_bytes(message)
            _collect(ranks, time.monotonic() + call.timeout_s)
            return [rank.outcome or _died(rank) for rank in ranks]
        finally:
            for rank in ranks:
                _end(rank)


def _launch(
    place: RankPlace,
    listener: socket.socket,
    folder: Path,
    start: str,
    preload: Sequence[str],
    others: Sequence[_Rank],
) -> _Rank:
    ours, theirs = socket.socketpair()
    released, release = os.pipe()
    output = folder / f"rank{place.rank}.txt"
    descriptors = (theirs.fileno(), released, listener.fileno())
    if start == "spawn":
        boot = _BOOT.format("ascend_sim.rank_process")
        arguments = [json.dumps(sys.path), json.dumps(place.to_json()), *map(str, descriptors)]
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-c", boot, *arguments, *preload],
                pass_fds=descriptors,
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
            )
        process.returncode = 0  # reaped by _end through its pid
        pid = process.pid
    else:
        pid = os.fork()
    if pid == 0:
        ours.close()
        os.close(release)
        for other in others:  # else an earlier rank would never see its release closed
            other.connection.close()
            os.close(other.release)
        stream_fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(stream_fd, 1)
        os.dup2(stream_fd, 2)
        os._exit(run_rank(place, *descriptors))
    theirs.close()
    os.close(released)
    return _Rank(place, pid, Connection(ours.detach()), release, output)


def _collect(ranks: Sequence[_Rank], deadline: float) -> None:
    """Wait for every outcome, not for long once a rank failed; ask for stacks when time is up."""
    waiting = {rank.connection: rank for rank in ranks}
    failed = False
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            _give_up(list(waiting.values()), aborted=failed)
            return
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = waiting.pop(connection)
            try:
                result, failure = pickle.loads(connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                rank.outcome = _died(rank)
            else:
                report = f"{failure}{_printed(rank)}" if failure else ""
                rank.outcome = Outcome(rank.place.rank, result, report)
            if rank.outcome.failure and not failed:
                failed = True
                deadline = min(deadline, time.monotonic() + _FAILURE_GRACE_S)


def _give_up(ranks: Sequence[_Rank], *, aborted: bool) -> None:
    for rank in ranks:
        rank.stacks_asked = True
        os.kill(rank.pid, signal.SIGUSR1)
    time.sleep(_STACKS_GRACE_S)
    for rank in ranks:
        report = f"did not finish; its stacks and output:\n{_printed(rank)}"
        rank.outcome = Outcome(rank.place.rank, None, report, hung=not aborted, aborted=aborted)


def _died(rank: _Rank) -> Outcome:
    code = _reap(rank)
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return Outcome(rank.place.rank, None, f"{how} before it had a result{_printed(rank)}")


def _reap(rank: _Rank) -> int:
    """The exit code of a rank that has closed its connection, negative for a signal."""
    deadline = time.monotonic() + _REAP_S
    while not (status := os.waitpid(rank.pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(rank.pid, signal.SIGKILL)
        time.sleep(0.005)
    rank.pid = 0
    return os.waitstatus_to_exitcode(status[1])


def _printed(rank: _Rank) -> str:
    text = rank.output.read_text(errors="replace") if rank.output.exists() else ""
    return (
        f"\n--- rank {rank.place.rank} printed ---\n{text[-_OUTPUT_LIMIT:]}" if text.strip() else ""
    )


def _end(rank: _Rank) -> None:
    rank.connection.close()
    os.close(rank.release)
    if not rank.pid:
        return
    if rank.outcome is None or rank.outcome.failure:
        os.kill(rank.pid, signal.SIGKILL)
    os.waitpid(rank.pid, 0)
