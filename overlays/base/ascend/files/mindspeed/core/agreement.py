"""Do all ranks run the same build? One small exchange of keys through a store.

Each rank makes five small requests, whatever the number of ranks: it counts itself, counts the
ranks that know the same facts, counts those that have arrived, and waits for and reads the verdict
that the last to arrive writes. Who differs is asked only where somebody does, and who is absent
only where a rank is. Keys carry the id of the run and a number that the store counts, so neither a
restart nor a second check reads old ones. No clock is compared between hosts.
"""

import hashlib
import json
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

DEFAULT_REQUIRED = ("origin", "files", "build", "torch", "torch_npu")
"""Facts that must be the same; of others, a difference is a warning."""
_NAMED_AT_MOST = 16
_GRACE_S = 8.0


class Store(Protocol):
    """What is used of a `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Set a key."""

    def get(self, key: str) -> bytes:
        """Wait for a key and read it."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until all keys are there; raises where they are not in time."""


class DisagreementError(RuntimeError):
    """The ranks do not all run the same, or not all of them are there."""


class LostStoreError(DisagreementError):
    """The store does not answer; nothing more can be asked of it, a request may never return."""


@dataclass
class RankCheck:
    """One rank's part in one check: `run`, which is `arrive`, then `settle`.

    Attributes:
        facts: what this rank runs, by name.
        store: shared by all ranks.
        rank: of this process, of `world_size`.
        run_id: the same for all ranks of a run, another one after a restart.
        required: the facts that must be the same.
        timeout_s: how long to wait for the last rank.
        node: this host, for messages.
    """

    facts: Mapping[str, str]
    store: Store
    rank: int
    world_size: int
    run_id: str = "0"
    required: tuple[str, ...] = DEFAULT_REQUIRED
    timeout_s: float = 300.0
    node: str = field(default_factory=platform.node)
    _prefix: str = field(default="", init=False)
    _number: int = field(default=0, init=False)
    _place: int = field(default=0, init=False)

    def run(self) -> list[str]:
        """Arrive and settle, and come back even where the network swallows every answer.

        Returns and raises as `settle`.
        """
        ended: list[list[str] | BaseException] = []

        def take_part() -> None:
            try:
                self.arrive()
                ended.append(self.settle())
            except BaseException as error:
                ended.append(error)

        # The store's own timeouts do not end a request whose answer never comes.
        thread = threading.Thread(target=take_part, daemon=True)
        thread.start()
        thread.join(self.timeout_s + 2 * _GRACE_S)
        if not ended:
            raise LostStoreError(_tell_lost_store("no answer"))
        if isinstance(ended[0], BaseException):
            raise ended[0]
        return ended[0]

    def arrive(self) -> None:
        """Say that this rank is here and what it runs; the last one to do so gives the verdict.

        Raises:
            DisagreementError: the store does not answer.
        """
        base = f"mindspeed/verify/{self.run_id}"
        with _explain_store():
            self._number = self.store.add(f"{base}/rank/{self.rank}", 1)
            self._prefix = f"{base}/{self._number}"
            self._place = self.store.add(self._key("same", self._digest), 1)
            if self.store.add(self._key("arrived"), 1) == self.world_size:
                alike = self.store.add(self._key("same", self._digest), 0)
                verdict = "same" if alike == self.world_size else "different"
                self.store.set(self._key("verdict"), verdict)

    def settle(self) -> list[str]:
        """Wait for the verdict.

        Returns:
            Sentences on facts that differ and may.

        Raises:
            DisagreementError: required facts differ (with the ranks that are odd), a rank is absent
                (with its number), or the store is gone.
        """
        with _explain_store():
            if not self._wait("verdict", self.timeout_s):
                raise DisagreementError(self._find_absent())
            if self.store.get(self._key("verdict")) == b"same":
                return []
            self._tell()
            if not self._wait("report", self.timeout_s):
                raise DisagreementError("the ranks differ, and one died before it could say how")
            report = json.loads(self.store.get(self._key("report")))
        if report["errors"]:
            raise DisagreementError(
                "\n  ".join(["the ranks do not run the same", *report["errors"]])
            )
        return list(report["warnings"])

    @property
    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(dict(self.facts), sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def _key(self, *parts: object) -> str:
        return "/".join([self._prefix, *map(str, parts)])

    def _wait(self, name: str, seconds: float) -> bool:
        try:
            self.store.wait([self._key(name)], timedelta(seconds=seconds))
        except RuntimeError as error:
            if _is_timeout(error):
                return False
            raise
        return True

    def _find_absent(self) -> str:
        """Which ranks are not here: one rank looks, the others read what it found."""
        if self.store.add(self._key("late"), 1) != 1:
            if self._wait("absent", _GRACE_S):
                return self.store.get(self._key("absent")).decode()
            return f"not every rank took part within {self.timeout_s:g} s"
        counters = (f"mindspeed/verify/{self.run_id}/rank/{r}" for r in range(self.world_size))
        here = [self.store.add(counter, 0) >= self._number for counter in counters]
        absent = [rank for rank, present in enumerate(here) if not present]
        found = (
            f"{_name_ranks(absent)} of {self.world_size} did not take part within "
            f"{self.timeout_s:g} s: dead, cut off, without this check, or of another run"
        )
        self.store.set(self._key("absent"), found)
        return found

    def _tell(self) -> None:
        """Write down what this rank runs; the last one to do so writes the report."""
        self.store.set(self._key("member", self._digest, self._place), f"{self.rank} {self.node}")
        if self._place == 1:
            group = self.store.add(self._key("groups"), 1)
            known = {"digest": self._digest, "facts": dict(self.facts)}
            self.store.set(self._key("group", group), json.dumps(known))
        if self.store.add(self._key("told"), 1) == self.world_size:
            self.store.set(self._key("report"), json.dumps(self._compare()))

    def _compare(self) -> dict[str, list[str]]:
        groups = []
        for number in range(1, self.store.add(self._key("groups"), 0) + 1):
            group = json.loads(self.store.get(self._key("group", number)))
            group["size"] = self.store.add(self._key("same", group["digest"]), 0)
            groups.append(group)
        usual = max(groups, key=lambda group: group["size"])
        report: dict[str, list[str]] = {"errors": [], "warnings": []}
        for group in groups:
            for name in _differing(group["facts"], usual["facts"]):
                ours, theirs = (g["facts"].get(name) or "absent" for g in (group, usual))
                sentence = f"{self._name_group(group)}: {name} is {ours}, elsewhere {theirs}"
                report["errors" if name in self.required else "warnings"].append(sentence)
        return report

    def _name_group(self, group: Mapping[str, Any]) -> str:
        shown = min(group["size"], _NAMED_AT_MOST)
        by_node: dict[str, list[int]] = {}
        for place in range(1, shown + 1):
            member = self.store.get(self._key("member", group["digest"], place)).decode()
            rank, _, node = member.partition(" ")
            by_node.setdefault(node, []).append(int(rank))
        hosts = (f"{_name_ranks(ranks)} on {node}" for node, ranks in sorted(by_node.items()))
        named = ", ".join(hosts)
        return named + (f" and {group['size'] - shown} more" if group["size"] > shown else "")


def collect_facts() -> dict[str, str]:
    """What this process runs: build, torch, torch_npu, Python, machine, CANN."""
    import mindspeed

    return {
        "build": str(mindspeed.build_info().get("digest", "a source tree"))[:16],
        "torch": find_version("torch"),
        "torch_npu": find_version("torch_npu"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cann": os.environ.get("ASCEND_TOOLKIT_HOME", "").rpartition("/")[2],
    }


def find_run_id() -> str:
    """The id of this run, the same on all ranks: torchrun's with its restart, or Slurm's step."""
    names = (
        ("MINDSPEED_RUN_ID",),
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    )
    for group in names:
        if os.environ.get(group[0]):
            return ".".join(os.environ.get(name, "0") for name in group)
    return "0"


def find_version(package: str) -> str:
    """A package's version: of the module that runs, or else of what is installed; "" for none."""
    import sys
    from importlib import metadata

    module = sys.modules.get(package)
    if module is not None and getattr(module, "__version__", None):
        return str(module.__version__)
    try:
        return metadata.version(package.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return ""


def _differing(facts: Mapping[str, str], usual: Mapping[str, str]) -> Iterator[str]:
    return (name for name in sorted({*facts, *usual}) if facts.get(name) != usual.get(name))


def _name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:_NAMED_AT_MOST]))
    more = f" and {len(ranks) - _NAMED_AT_MOST} more" if len(ranks) > _NAMED_AT_MOST else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def _is_timeout(error: RuntimeError) -> bool:
    return "timeout" in str(error).lower() or "timed out" in str(error).lower()


def _tell_lost_store(why: str) -> str:
    where = f"{os.environ.get('MASTER_ADDR', 'unknown')}:{os.environ.get('MASTER_PORT', '')}"
    return (
        f"the store at {where}, which the first host keeps, does not answer: that host is dead or "
        f"cut off from this one ({why})"
    )


class _explain_store:
    """Turns a lost connection into a sentence that says what it means."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, DisagreementError):
            where = (
                f"{os.environ.get('MASTER_ADDR', 'unknown')}:{os.environ.get('MASTER_PORT', '')}"
            )
            raise DisagreementError(
                f"the store at {where}, which rank 0's host keeps, does not answer: that host is "
                f"dead or cut off from this one ({str(error).splitlines()[0]})"
            ) from error
