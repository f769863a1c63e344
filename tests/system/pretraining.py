"""Pretrains a small GPT through megatron.training, from command-line flags, on a rank of a tree.

PyPI's wheels carry megatron.training from 0.17 on and no script; this is one, for every release.
It brings its own data, a walk through a small vocabulary that each sample starts elsewhere, so
that no index has to be built and losses fall within a few steps.
"""

import contextlib
import hashlib
import inspect
import io
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.worker import enter_tree

VOCABULARY = 63
_MODELS: list[torch.nn.Module] = []


class Walks(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples of `length` tokens, each a walk of its own stride modulo the vocabulary."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        steps = torch.arange(self.length + 1)
        walk = (index * 7 + steps * (1 + index % 3)) % VOCABULARY
        return {
            "tokens": walk[:-1].contiguous(),
            "labels": walk[1:].contiguous(),
            "loss_mask": torch.ones(self.length),
            "position_ids": steps[:-1].contiguous(),
        }


def provide_datasets(counts: list[int], *rest: Any, **more: Any) -> list[Walks]:
    """Train, validation and test data."""
    from megatron.training import get_args

    return [Walks(max(int(count or 0), 1), get_args().seq_length) for count in counts]


def provide_model(
    pre_process: bool = True, post_process: bool = True, *rest: Any, **more: Any
) -> Any:
    """A GPTModel as the arguments say."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.training import get_args
    from megatron.training.arguments import core_transformer_config_from_args

    args = get_args()
    model = GPTModel(
        core_transformer_config_from_args(args),
        get_gpt_layer_local_spec(args.num_experts, args.moe_grouped_gemm, normalization="RMSNorm")
        if "normalization" in inspect.signature(get_gpt_layer_local_spec).parameters
        else get_gpt_layer_local_spec(args.num_experts, args.moe_grouped_gemm),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
    )
    _MODELS.append(model)
    return model


def compute_loss(
    loss_mask: torch.Tensor, losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Sum of losses, number of tokens, and what is reported."""
    import megatron.core
    from megatron.core import parallel_state

    total = (losses.view(-1).float() * loss_mask.view(-1)).sum()
    count = loss_mask.sum().detach().to(torch.int)
    report: Any = torch.stack([total.detach(), count.float()])
    if megatron.core.__version__.startswith("0.12."):  # it sums neither ranks nor micro-batches
        torch.distributed.all_reduce(report, group=parallel_state.get_data_parallel_group())
        report = tuple(report)
    return total, count, {"lm loss": report}


def step_forward(data: Iterator[dict[str, torch.Tensor]], model: Any) -> Any:
    """One micro-batch; every rank reads the same data, as the tensor-parallel ranks must."""
    batch = {key: value.cuda() for key, value in next(data).items()}
    length = batch["tokens"].shape[1]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device="cuda").triu(1)
    losses = model(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"])
    return losses, partial(compute_loss, batch["loss_mask"])


def start_pretraining() -> None:
    """Call `pretrain` as this release has it; the flags are in sys.argv."""
    from megatron.core.enums import ModelType
    from megatron.training import pretrain

    provide_datasets.is_distributed = True  # type: ignore[attr-defined]
    first = next(iter(inspect.signature(pretrain).parameters))
    if first == "train_valid_test_dataset_provider":
        pretrain(provide_datasets, provide_model, ModelType.encoder_or_decoder, step_forward)
        return
    from megatron.training.argument_utils import pretrain_cfg_container_from_args
    from megatron.training.arguments import parse_and_validate_args

    container = pretrain_cfg_container_from_args(parse_and_validate_args())
    pretrain(
        container,
        train_valid_test_dataset_provider=provide_datasets,
        model_provider=provide_model,
        model_type=ModelType.encoder_or_decoder,
        forward_step_func=step_forward,
    )


def pretrain_in_tree(tree: str, flags: list[str]) -> dict[str, Any]:
    """Pretrain in this rank's process, which a launcher's environment variables describe.

    Returns:
        `losses` and `norms`, printed, by iteration (of the last rank, which prints them);
        `weights`, a digest of every parameter at the end; `output`, all that was printed.
    """
    enter_tree(tree, lend_triton=True)
    os.environ.setdefault("TORCH_NPU_DEVICE_CAPABILITY", "8.0")
    sys.argv = ["pretraining.py", *flags]
    _lend_helpers()
    if not Path(tree, "mindspeed").is_dir():
        _lend_double_reductions()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            start_pretraining()
        except SystemExit as end:  # --exit-interval ends so
            if end.code:
                raise
    text = printed.getvalue()
    pattern = r"iteration +(\d+)/.*lm loss: (\S+) .*grad norm: (\S+)"
    rows = [(int(i), loss, norm) for i, loss, norm in re.findall(pattern, text)]
    return {
        "losses": {i: float(loss) for i, loss, _ in rows},
        "norms": {i: float(norm) for i, _, norm in rows},
        "weights": digest_weights(),
        "output": text,
    }


def _lend_helpers() -> None:
    """Where the wheel's compiled index helpers are for a newer Python, do not compile any.

    This data needs no index. `megatron.training` asks for them all the same.
    """
    from megatron.core.datasets import utils

    try:
        from megatron.core.datasets import helpers_cpp  # noqa: F401
    except ImportError:
        utils.compile_helpers = lambda: None


def _lend_double_reductions() -> None:
    """Let upstream start: it reduces its start time as a double, which HCCL refuses.

    Of one rank, as here, every reduction is the number itself.
    """
    plain = torch.distributed.all_reduce

    def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.dtype is torch.float64 and torch.distributed.get_world_size() == 1:
            return None
        return plain(tensor, *args, **kwargs)

    torch.distributed.all_reduce = all_reduce


def digest_weights() -> dict[str, str]:
    """SHA-256 of each parameter's bytes."""
    return {
        name: hashlib.sha256(
            parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        ).hexdigest()
        for model in _MODELS
        for name, parameter in model.named_parameters()
    }
