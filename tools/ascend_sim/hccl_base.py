"""The part of an `hccl` process group that is no collective: identity, handles, point to point."""

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ascend_sim import comm_log
from ascend_sim.carrier import Tensors, make_device, raw

_c10d: Any = torch._C._distributed_c10d

_gloo = _c10d.ProcessGroupGloo


def raise_failure(work: Any) -> None:
    """Raise what a collective failed with; `Work.wait` in C++ says nothing of it.

    Args:
        work: a handle that has been waited for. One without a future (a send) raises by itself.
    """
    try:
        future = work.get_future()
    except RuntimeError:
        return
    if future.done():
        future.value()


class Batch(_c10d.Work):  # type: ignore[misc]
    """The handle of sends and receives that were posted together."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self.works = list(works)

    def wait(self, *arguments: Any) -> bool:
        """Wait for all of them."""
        for work in self.works:
            work.wait(*arguments)
        return True

    def is_completed(self) -> bool:
        """Whether all of them are done."""
        return all(work.is_completed() for work in self.works)


class HcclBase(_gloo):  # type: ignore[misc, valid-type]
    """A group's identity, its sends and receives, and how a collective is launched."""

    def __init__(self, options: Any, hccl_options: Any = None) -> None:
        """Make the group; connections are made when two ranks first talk.

        Args:
            options: what `init_process_group` hands to a backend (store, ranks, timeout).
            hccl_options: the program's `ProcessGroupHCCL.Options`, kept for it to read.
        """
        carried = _gloo._Options()
        carried._devices = [make_device()]
        carried._timeout = options.timeout or datetime.timedelta(minutes=30)
        carried._threads = 1  # the calls of one HCCL group run in order
        super().__init__(options.store, options.group_rank, options.group_size, carried)
        self.group_name = options.group_id or "default"
        self.ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
        self.hccl_options = hccl_options
        self.batch: list[Any] | None = None
        self._sequence = 0

    # What programs ask of an HCCL group.

    @property
    def options(self) -> Any:
        """The `ProcessGroupHCCL.Options` that the group was made with."""
        return self.hccl_options

    def get_hccl_comm_name(self, rank: int, init_comm: bool = True) -> str:
        """The name by which operators of the matrix-multiply-and-communicate family find it."""
        return f"ascend_sim_{self.group_name}"

    def name(self) -> str:
        """The backend's name."""
        return "hccl"

    def _get_backend_name(self) -> str:
        return "hccl"

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def shutdown(self) -> None:
        """Nothing: a peer may still be reading what this rank sent."""

    def abort(self) -> None:
        """Nothing, as `shutdown`."""

    # Point to point. Gloo's handles have no future; they are handed out as they are.

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Any:
        """Send a tensor to a rank of the group."""
        (tensor,) = tensors
        data = raw(tensor)
        work = super().send([data], destination, tag)
        return self._pass_on("send", work, tensor, data, sent=data.nbytes)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        """Receive a tensor from a rank of the group."""
        (tensor,) = tensors
        data = raw(tensor)
        return self._pass_on("recv", super().recv([data], source, tag), tensor, data)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        """Receive a tensor from whichever rank sends one."""
        (tensor,) = tensors
        data = raw(tensor)
        return self._pass_on("recv", super().recv_anysource([data], tag), tensor, data)

    def batch_isend_irecv(
        self, kinds: Sequence[str], tensors: Tensors, peers: Sequence[int]
    ) -> Any:
        """Post sends and receives together; one handle for all of them."""
        works = []
        for kind, tensor, peer in zip(kinds, tensors, peers, strict=True):
            post = self.send if kind == "isend" else self.recv
            works.append(post([tensor], peer))
        return Batch(works)

    # How it is done.

    def _launch(
        self,
        collective: str,
        works: Sequence[Any],
        outputs: Tensors,
        *,
        payload: int,
        sent: int,
        blocking: bool,
        finish: Callable[[], Any] | None = None,
        result: Any = None,
    ) -> Any:
        """Join gloo's handles into one that is done when `finish` has run; count the call."""
        self._sequence += 1
        launch = comm_log.count(
            collective,
            group=self.group_name,
            ranks=self.ranks,
            payload_bytes=payload,
            sent_bytes=sent,
            blocking=blocking,
        )
        futures = [work.get_future() for work in works]
        joined = futures[0] if len(futures) == 1 else torch.futures.collect_all(futures)

        def complete(future: Any) -> Any:
            for one in [future, *(future.value() if len(futures) != 1 else ())]:
                one.value()  # raises what the transport raised
            if finish is not None:
                finish()
            return list(outputs) if result is None else result

        work = _c10d._create_work_from_future(joined.then(complete))
        storages = frozenset(t.untyped_storage().data_ptr() for t in outputs)
        comm_log.track(launch, work, kept=None, storages=storages)
        return work

    def _pass_on(
        self, collective: str, work: Any, tensor: torch.Tensor, data: torch.Tensor, *, sent: int = 0
    ) -> Any:
        self._sequence += 1
        launch = comm_log.count(
            collective,
            group=self.group_name,
            ranks=self.ranks,
            payload_bytes=data.nbytes,
            sent_bytes=sent,
            blocking=False,
        )
        storages = frozenset([tensor.untyped_storage().data_ptr()])
        comm_log.track(launch, work, kept=(tensor, data), storages=storages)
        if self.batch is not None:
            self.batch.append(work)
        return work
