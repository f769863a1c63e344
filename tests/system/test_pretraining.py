"""Pretraining from flags: fused as unfused, save, resume, reshard, and checkpoints of upstream.

megatron.training comes from PyPI's wheels from 0.17 on; older releases need the repository.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ascend_sim.ranks import RankError
from harness.trees import GIT_VARIABLE, Trees
from system.pretraining_runs import Run, run

FUSED = (
    "--use-flash-attn",
    "--use-fused-rmsnorm",
    "--use-fused-swiglu",
    "--use-fused-rotary-pos-emb",
)
STEPS = 6
SAVED_AT = 3
# Of losses near 3, printed with seven digits; fp32 sums in another order.
CLOSE = 2e-4

FROM_PYPI = ("core_v0.17.1", "core_v0.19.0")

# Upstream's own gradient clipping refuses gradients on an NPU.
UNCLIPPED = ("--clip-grad", "0")

needs_git = pytest.mark.skipif(
    GIT_VARIABLE not in os.environ, reason=f"NOT RUN: no megatron.training; set {GIT_VARIABLE}"
)


@dataclass
class Release:
    """Runs of one release, each made when it is asked for first."""

    pristine: Path
    patched: Path
    folder: Path
    done: dict[str, Run] = field(default_factory=dict)

    def whole(self) -> Run:
        """Fused, without interruption."""
        return self._once("whole", self.patched, FUSED)

    def unfused(self) -> Run:
        """The same with every option off."""
        return self._once("unfused", self.patched, ())

    def saved(self) -> Path:
        """The checkpoint of a fused run that ended early."""
        return self._save("saved", self.patched, FUSED)

    def saved_unclipped(self, tree: Path) -> Path:
        """The checkpoint of an unfused, unclipped run that ended early."""
        return self._save(f"unclipped-{tree.name}", tree, UNCLIPPED)

    def _save(self, name: str, tree: Path, flags: tuple[str, ...]) -> Path:
        target = self.folder / name
        stop = (str(SAVED_AT),)
        end = ("--save", str(target), "--save-interval", *stop, "--exit-interval", *stop)
        assert set(self._once(name, tree, (*flags, *end)).losses) == {1, 2, 3}
        return target

    def _once(self, name: str, tree: Path, flags: tuple[str, ...]) -> Run:
        if name not in self.done:
            self.done[name] = run(tree, flags, steps=STEPS)
        return self.done[name]


@pytest.fixture(
    scope="module",
    params=[
        *FROM_PYPI,
        pytest.param("core_v0.12.1", marks=needs_git),
        pytest.param("core_v0.16.1", marks=needs_git),
    ],
)
def release(
    request: pytest.FixtureRequest, trees: Trees, tmp_path_factory: pytest.TempPathFactory
) -> Release:
    tag = request.param
    tree = "core" if tag in FROM_PYPI else "full"
    folder = tmp_path_factory.mktemp(tag)
    return Release(trees.pristine(tag, tree=tree), trees.patched(tag, tree=tree), folder)


def test_fused_run_learns_as_the_unfused_one(release: Release) -> None:
    fused, unfused = release.whole(), release.unfused()
    assert set(fused.losses) == set(range(1, STEPS + 1))
    assert fused.losses[STEPS] < fused.losses[1] - 0.5
    for step, loss in unfused.losses.items():
        assert fused.losses[step] == pytest.approx(loss, abs=CLOSE)


def test_resumed_run_ends_with_the_bits_of_the_uninterrupted_one(release: Release) -> None:
    resumed = run(release.patched, [*FUSED, "--load", str(release.saved())], steps=STEPS)
    assert set(resumed.losses) == {4, 5, 6}
    assert resumed.weights == release.whole().weights
    assert len(resumed.weights[0]) > 10


def test_checkpoint_of_one_rank_goes_on_with_two_tensor_parallel_ranks(release: Release) -> None:
    load = ["--load", str(release.saved()), "--no-load-rng"]
    resharded = run(
        release.patched,
        [*FUSED, *load, "--tensor-model-parallel-size", "2"],
        world_size=2,
        steps=STEPS,
    )
    assert set(resharded.losses) == {4, 5, 6}
    assert resharded.losses[STEPS] == pytest.approx(release.whole().losses[STEPS], abs=CLOSE)
    assert resharded.norms[STEPS] == pytest.approx(release.whole().norms[STEPS], rel=1e-3)


# Before 0.17 upstream's own training does not start without nvcc.
@pytest.mark.parametrize("release", FROM_PYPI, indirect=True)
def test_checkpoints_of_upstream_and_of_ours_are_interchangeable(release: Release) -> None:
    trees = (release.pristine, release.patched)
    ends = [
        run(reader, ["--load", str(release.saved_unclipped(writer)), *UNCLIPPED], steps=STEPS)
        for writer, reader in (trees, trees[::-1])
    ]
    assert set(ends[0].losses) == {4, 5, 6}
    assert ends[0].weights == ends[1].weights


def test_option_that_cannot_be_is_refused_by_its_flag(release: Release) -> None:
    with pytest.raises(RankError, match=r"--sparse-mode \(sparse_mode=2\): needs use_flash_attn"):
        run(release.patched, ["--sparse-mode", "2"], steps=1)
