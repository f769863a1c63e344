"""Starts `pretraining` on forked ranks of a tree, with the flags of a small GPT."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascend_sim import ranks

_HERE = str(Path(__file__).parent)
_ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}

_FLAGS = """
--num-layers 2 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 --seq-length 16
--max-position-embeddings 16 --position-embedding-type rope --normalization RMSNorm --swiglu
--disable-bias-linear --untie-embeddings-and-output-weights --transformer-impl local
--tokenizer-type NullTokenizer --vocab-size 63 --make-vocab-size-divisible-by 2
--micro-batch-size 2 --global-batch-size 4 --lr 2e-2 --min-lr 2e-2 --lr-decay-style constant
--attention-dropout 0 --hidden-dropout 0 --no-gradient-accumulation-fusion
--no-masked-softmax-fusion --no-persist-layer-norm --no-rope-fusion
--log-interval 1 --eval-iters 0 --eval-interval 1000 --seed 7
"""


@dataclass(frozen=True)
class Run:
    """What the ranks of one pretraining answered."""

    losses: dict[int, float]
    norms: dict[int, float]
    weights: tuple[dict[str, str], ...]
    """Of each rank: parameter name to digest."""
    output: str


def run(
    tree: Path, flags: Sequence[str], *, world_size: int = 1, steps: int = 6, timeout_s: float = 200
) -> Run:
    """Pretrain `tree`'s GPT with `flags` added to those above.

    Raises:
        ranks.RankError: a rank raised or hung.
    """
    if _HERE not in sys.path:
        sys.path.append(_HERE)  # the ranks' server inherits it
    server = ranks.server(preload=("harness.device:prepare", "numpy"), env=_ENVIRONMENT)
    answers: list[dict[str, Any]] = server.run(
        "pretraining:pretrain_in_tree",
        str(tree),
        [*_FLAGS.split(), "--train-iters", str(steps), *flags],
        world_size=world_size,
        backend=None,
        timeout_s=timeout_s,
    )
    last = answers[-1]
    weights = tuple(answer["weights"] for answer in answers)
    output = "\n".join(answer["output"] for answer in answers)
    return Run(last["losses"], last["norms"], weights, output)
