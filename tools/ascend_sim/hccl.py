"""The process group behind backend `hccl` on simulated devices: gloo over CPU aliases.

Follows what HCCL through torch_npu does where programs can see it: calls of one group run in order,
a call may be waited for later, reductions are computed in the tensor's own type, AVG is a SUM and a
division, tensors must be dense. Not shown: speed, stream order, deadlocks of unmatched sends.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ascend_sim.carrier import Reduction, Tensors, dense, raw, reduction
from ascend_sim.hccl_base import HcclBase

_c10d: Any = torch._C._distributed_c10d


class Hccl(HcclBase):
    """One group's backend. Methods are those of `torch.distributed.Backend`, on device tensors.

    CPU tensors are taken too: the reference kernels of matrix-multiply-and-communicate operators
    hand them over, and count as this group's traffic.
    """

    def allreduce(self, tensors: Tensors, options: Any = None) -> Any:
        """Reduce each tensor over the ranks, in place."""
        options = options or _c10d.AllreduceOptions()
        reductions = [reduction(dense(t), options.reduceOp, size=self.size()) for t in tensors]
        payload = _bytes(tensors)
        return self._launch(
            "all_reduce",
            [self._all_reduce(one) for one in reductions],
            tensors,
            payload=payload,
            sent=2 * payload * (self.size() - 1) // self.size(),
            blocking=not options.asyncOp,
            finish=lambda: _finish(reductions),
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, options: Any) -> Any:
        """Reduce onto the root; other ranks keep what they had."""
        (tensor,) = tensors
        one = reduction(dense(tensor), options.reduceOp, size=self.size(), copy=True)
        native = _c10d.ReduceOptions()
        native.reduceOp, native.rootRank = one.op, options.rootRank
        root = options.rootRank == self.rank()
        return self._launch(
            "reduce",
            [super().reduce([one.carrier], native)],
            tensors,
            payload=tensor.nbytes,
            sent=0 if root else tensor.nbytes,
            blocking=not options.asyncOp,
            finish=one.finish if root else None,
        )

    def broadcast(self, tensors: Tensors, options: Any) -> Any:
        """Copy the root's tensors to all ranks."""
        payload = _bytes(tensors)
        return self._launch(
            "broadcast",
            [self._broadcast(raw(t), options.rootRank) for t in tensors],
            tensors,
            payload=payload,
            sent=payload * (self.size() > 1) if options.rootRank == self.rank() else 0,
            blocking=not options.asyncOp,
        )

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, options: Any = None) -> Any:
        """Gather every rank's tensor into lists; shards may differ in size."""
        options = options or _c10d.AllgatherOptions()
        works, finishers = [], []
        for parts, shard in zip(outputs, inputs, strict=True):
            work, finish = self._all_gather_list(parts, shard)
            works.extend(work)
            finishers.append(finish)
        payload = _bytes(inputs)
        return self._launch(
            "all_gather",
            works,
            [tensor for parts in outputs for tensor in parts],
            payload=payload,
            sent=payload * (self.size() - 1),
            blocking=not options.asyncOp,
            finish=lambda: [finish() for finish in finishers],
            result=outputs,
        )

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, options: Any = None
    ) -> Any:
        """`allgather` of several tensors."""
        return self.allgather(outputs, inputs, options)

    def _allgather_base(
        self, output: torch.Tensor, input: torch.Tensor, options: Any = None
    ) -> Any:
        return self.allgather_into_tensor_coalesced([output], [input], options)

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, options: Any = None
    ) -> Any:
        """Gather every rank's tensor into one tensor, in order of rank."""
        options = options or _c10d.AllgatherOptions()
        works = []
        for output, shard in zip(outputs, inputs, strict=True):
            if output.nbytes != shard.nbytes * self.size():
                raise ValueError(
                    "output tensor size must be equal to world_size times input tensor size"
                )
            native = _c10d.AllgatherOptions()
            works.append(super()._allgather_base(raw(output), raw(shard), native))
        payload = _bytes(inputs)
        return self._launch(
            "all_gather",
            works,
            outputs,
            payload=payload,
            sent=payload * (self.size() - 1),
            blocking=not options.asyncOp,
        )

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, options: Any) -> Any:
        return self.reduce_scatter_tensor_coalesced([output], [input], options)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, options: Any
    ) -> Any:
        """Reduce over the ranks and keep this rank's slice."""
        for output, whole in zip(outputs, inputs, strict=True):
            if output.numel() * self.size() != whole.numel() or output.dtype != whole.dtype:
                raise ValueError(
                    "input tensor must be the same size as output size times world size"
                )
        return self._reduce_scatter(outputs, [dense(t).clone() for t in inputs], options)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], options: Any) -> Any:
        """`reduce_scatter` of a list with one tensor for each rank."""
        whole = [torch.cat([dense(t) for t in parts]) for parts in inputs]
        return self._reduce_scatter(outputs, whole, options)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        options: Any = None,
    ) -> Any:
        """Send slices of dimension 0 to the ranks, and receive theirs."""
        sizes_in = self._split_bytes(input, input_splits)
        sizes_out = self._split_bytes(output, output_splits)
        return self._all_to_all(raw(output), raw(input), sizes_out, sizes_in, [output], options)

    def alltoall(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> Any:
        """Send one tensor to each rank, and receive one."""
        source = torch.cat([raw(t) for t in inputs])
        sizes_out, sizes_in = [t.nbytes for t in outputs], [t.nbytes for t in inputs]
        landing = torch.empty(sum(sizes_out), dtype=torch.uint8)

        def finish() -> None:
            for tensor, part in zip(outputs, landing.split_with_sizes(sizes_out), strict=True):
                raw(tensor).copy_(part)

        return self._all_to_all(
            landing, source, sizes_out, sizes_in, outputs, options, finish=finish
        )

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, options: Any) -> Any:
        """Gather every rank's tensor on the root."""
        (source,) = inputs
        root = options.rootRank == self.rank()
        native = _c10d.GatherOptions()
        native.rootRank = options.rootRank
        parts = [[raw(t) for t in outputs[0]]] if root else []
        return self._launch(
            "gather",
            [super().gather(parts, [raw(source)], native)],
            list(outputs[0]) if root else [],
            payload=source.nbytes,
            sent=0 if root else source.nbytes,
            blocking=not options.asyncOp,
        )

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], options: Any) -> Any:
        """Give each rank one of the root's tensors."""
        (output,) = outputs
        root = options.rootRank == self.rank()
        native = _c10d.ScatterOptions()
        native.rootRank = options.rootRank
        parts = [[raw(t) for t in inputs[0]]] if root else []
        payload = _bytes(inputs[0]) if root else 0
        return self._launch(
            "scatter",
            [super().scatter([raw(output)], parts, native)],
            outputs,
            payload=payload,
            sent=payload - output.nbytes if root else 0,
            blocking=not options.asyncOp,
        )

    def barrier(self, options: Any = None) -> Any:
        """Wait until all ranks are here."""
        blocking = options is not None and not options.asyncOp
        works = [super().barrier(_c10d.BarrierOptions())]
        return self._launch("barrier", works, [], payload=0, sent=0, blocking=blocking)

    def all_gather_into_tensor_uneven(
        self, output: torch.Tensor, input: torch.Tensor, splits: Sequence[int], options: Any = None
    ) -> Any:
        """Gather shards of `splits` rows into one tensor."""
        rows = list(splits) or [output.size(0) // self.size()] * self.size()
        return self.allgather([list(output.split_with_sizes(rows))], [input], options)

    def reduce_scatter_tensor_uneven(
        self, output: torch.Tensor, input: torch.Tensor, splits: Sequence[int], options: Any
    ) -> Any:
        """Reduce over the ranks and keep this rank's `splits` rows."""
        rows = list(splits) or [input.size(0) // self.size()] * self.size()
        row = input.numel() // max(input.size(0), 1)
        lengths = [row * count for count in rows]
        return self._reduce_scatter([output], [dense(input).clone()], options, lengths=lengths)

    def alltoallvc(
        self, output: torch.Tensor, input: torch.Tensor, counts: Sequence[int], options: Any = None
    ) -> Any:
        """All-to-all by a matrix of counts, row for sender and column for receiver."""
        width, me, size = input.element_size(), self.rank(), self.size()
        sizes_in = [count * width for count in counts[me * size : (me + 1) * size]]
        sizes_out = [count * width for count in counts[me::size]]
        return self._all_to_all(raw(output), raw(input), sizes_out, sizes_in, [output], options)

    # The pieces.

    def _all_reduce(self, one: Reduction) -> Any:
        native = _c10d.AllreduceOptions()
        native.reduceOp = one.op
        return super().allreduce([one.carrier], native)

    def _broadcast(self, data: torch.Tensor, root: int) -> Any:
        native = _c10d.BroadcastOptions()
        native.rootRank = root
        return super().broadcast([data], native)

    def _all_gather_list(
        self, parts: Tensors, shard: torch.Tensor
    ) -> tuple[list[Any], Callable[[], Any]]:
        data = [raw(part) for part in parts]
        if all(part.nbytes == shard.nbytes for part in parts):
            native = _c10d.AllgatherOptions()
            return [super().allgather([data], [raw(shard)], native)], lambda: None
        if parts[self.rank()].nbytes != shard.nbytes:
            raise ValueError("this rank's output must have the size of its input")
        data[self.rank()].copy_(raw(shard))
        return [self._broadcast(part, root) for root, part in enumerate(data)], lambda: None

    def _reduce_scatter(
        self,
        outputs: Tensors,
        inputs: Tensors,
        options: Any,
        *,
        lengths: Sequence[int] = (),
    ) -> Any:
        """Reduce fresh 1-D `inputs` and keep this rank's part.

        Everything is reduced everywhere: a reduce_scatter then agrees bit for bit with an
        all_reduce, whatever the algorithm of the transport.
        """
        ones = [reduction(whole, options.reduceOp, size=self.size()) for whole in inputs]

        def finish() -> None:
            for output, whole, one in zip(outputs, inputs, ones, strict=True):
                one.finish()
                equal = [output.numel()] * self.size()
                parts = whole.split_with_sizes(list(lengths) or equal)
                if output.numel():
                    dense(output).copy_(parts[self.rank()])

        payload = _bytes(inputs)
        return self._launch(
            "reduce_scatter",
            [self._all_reduce(one) for one in ones],
            outputs,
            payload=payload,
            sent=payload * (self.size() - 1) // self.size(),
            blocking=not options.asyncOp,
            finish=finish,
        )

    def _all_to_all(
        self,
        landing: torch.Tensor,
        source: torch.Tensor,
        sizes_out: Sequence[int],
        sizes_in: Sequence[int],
        outputs: Tensors,
        options: Any,
        *,
        finish: Callable[[], None] | None = None,
    ) -> Any:
        """Exchange bytes: `sizes_in` go to the ranks, `sizes_out` come from them."""
        native = _c10d.AllToAllOptions()
        work = super().alltoall_base(landing, source, list(sizes_out), list(sizes_in), native)
        payload = sum(sizes_in)
        return self._launch(
            "all_to_all",
            [work],
            outputs,
            payload=payload,
            sent=payload - sizes_in[self.rank()],
            blocking=options is not None and not options.asyncOp,
            finish=finish,
        )

    def _split_bytes(self, tensor: torch.Tensor, rows: Sequence[int]) -> list[int]:
        """The bytes of slices of dimension 0, equal ones where `rows` names none."""
        if not rows:
            if tensor.dim() == 0 or tensor.size(0) % self.size():
                raise ValueError("Tensor's dim 0 does not divide equally across group size")
            return [tensor.nbytes // self.size()] * self.size()
        if len(rows) != self.size() or sum(rows) != tensor.size(0):
            raise ValueError("split sizes must match the group size and the tensor's dim 0")
        row_bytes = tensor.nbytes // tensor.size(0) if tensor.size(0) else 0
        return [row_bytes * count for count in rows]


def _finish(reductions: Sequence[Reduction]) -> None:
    for one in reductions:
        one.finish()


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)
