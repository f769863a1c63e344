"""What one rank process does for `ranks`: take its place, run the call, hand back the result."""

import ast
import ctypes
import datetime
import faulthandler
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from ascend_sim.ranks import Call, Target

_PR_SET_PDEATHSIG = 1
_kept: list[Any] = []  # the store serves slower ranks after this one has its result


@dataclass(frozen=True)
class RankPlace:
    """Which rank this is, and the port of the store that all ranks meet at."""

    rank: int
    world_size: int
    port: int

    def to_json(self) -> dict[str, int]:
        """The fields, for a command line."""
        return asdict(self)

    def environment(self) -> dict[str, str]:
        """What torchrun sets. The store is already there: rank 0 must not start one of its own."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }


def main(argv: Sequence[str]) -> None:
    """A spawned rank: `place connection released listener preload...`."""
    from ascend_sim.rank_server import preload_modules

    place = RankPlace(**json.loads(argv[0]))
    preload_modules(argv[4:])
    os._exit(run_rank(place, int(argv[1]), int(argv[2]), int(argv[3])))


def run_rank(place: RankPlace, connection_fd: int, released_fd: int, listener_fd: int) -> int:
    """Read a `Call`, run it, send `(result, failure)`, wait for the others; the exit code."""
    # A rank must not outlive its server, which may be killed while the rank waits in a collective.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    connection = Connection(connection_fd)
    try:
        call = pickle.loads(connection.recv_bytes())
        answer: tuple[bytes | None, str] = (_call(call, place, listener_fd), "")
    except BaseException as error:
        answer = (None, _report(error))
    connection.send_bytes(pickle.dumps(answer))
    # Rank 0 carries the store, and any rank may still be wanted by a peer's collective: all leave
    # together.
    os.read(released_fd, 1)
    return 0


def _call(call: Call, place: RankPlace, listener_fd: int) -> bytes:
    os.environ.update(place.environment())
    if "torch" in sys.modules or call.backend:
        _kept.append(_meet(place, listener_fd, call))
    if call.backend:
        _join(call, place)
    function: Any = _load(call.target)
    for name in call.target.qualname.split("."):
        owner, function = function, getattr(function, name)
        if isinstance(owner, type) and inspect.isfunction(function):
            function = getattr(owner(), name)  # a test of a class, on an instance of its own
    return pickle.dumps(_to_host(function(*call.args, **dict(call.kwargs))))


def _meet(place: RankPlace, listener_fd: int, call: Call) -> Any:
    """Open the rendezvous store, which rank 0 serves on the socket bound before the fork."""
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    c10d_types: Any = importlib.import_module("torch.distributed")

    sys.modules["torch"].set_num_threads(1)
    counter = itertools.count()
    plain_rendezvous = c10d.rendezvous

    def rendezvous(*args: Any, **kwargs: Any) -> Any:
        # A group made after destroy_process_group has the old one's name; its keys must not be the
        # old ones.
        for store, rank, world_size in plain_rendezvous(*args, **kwargs):
            yield c10d.PrefixStore(f"rendezvous_{next(counter)}", store), rank, world_size

    c10d.rendezvous = rendezvous
    if place.rank != 0:
        return None
    return c10d_types.TCPStore(
        "127.0.0.1",
        place.port,
        place.world_size,
        is_master=True,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=call.timeout_s),
        master_listen_fd=listener_fd,
    )


def _join(call: Call, place: RankPlace) -> None:
    import torch
    import torch.distributed as dist

    backend = call.backend or ""
    if "hccl" in backend:
        device = torch.get_device_module("npu")
        device.set_device(place.rank % device.device_count())
    timeout = datetime.timedelta(seconds=call.timeout_s)
    dist.init_process_group(backend, timeout=timeout)


def _load(target: Target) -> ModuleType:
    if target.module in sys.modules:
        return sys.modules[target.module]
    if not target.file:
        return importlib.import_module(target.module)
    name = target.module if target.module != "__main__" else "__ranks_main__"
    spec = importlib.util.spec_from_file_location(name, target.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if target.rewrite_asserts:
        exec(_with_rewritten_asserts(Path(target.file)), module.__dict__)
    else:
        spec.loader.exec_module(module)
    return module


def _with_rewritten_asserts(file: Path) -> Any:
    """Compile a test module the way pytest does, so that a failing assert shows its operands."""
    from _pytest.assertion.rewrite import rewrite_asserts

    source = file.read_bytes()
    tree = ast.parse(source, filename=str(file))
    rewrite_asserts(tree, source, str(file))
    return compile(tree, str(file), "exec", dont_inherit=True)


def _to_host(value: Any) -> Any:
    """Device tensors in `value` as CPU tensors: the reader of a result may have no such device."""
    torch = sys.modules.get("torch")
    if torch is None:
        return value
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), value)


def _report(error: BaseException) -> str:
    """The traceback from the called function on, without this module's own frames."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
