"""Verify the installed build on many hosts, over the user's own OpenSSH client.

Each host runs `cluster/probe.py` in its training Python; it needs nothing else. Host keys, users,
jump hosts and identities are what ssh's configuration says; passwords are never asked for.
"""

import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import Problem, UsageError
from mindspeed_overlay.installed import PROBE, judge, read_probe, relocate
from mindspeed_overlay.lock import Lock

_SAME = ("build", "torch", "torch-npu")
"""Facts that must be the same on every host."""
_SHOULD_BE_SAME = ("python", "machine", "cann", "numpy", "triton")


@dataclass(frozen=True)
class Host:
    """One line of a hosts file."""

    name: str
    python: str = "python3"
    cwd: str = ""


@dataclass(frozen=True)
class HostReport:
    """What became of one host.

    Attributes:
        state: "ok", "wrong" (problems of its installation), "differs" (from the others),
            "unreachable", "hangs", "no python".
        facts: build, torch, torch-npu, python and more, where it answered.
        warnings: facts that differ from the others' and may.
    """

    host: Host
    state: str
    problems: tuple[Problem, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "host": self.host.name,
            "state": self.state,
            "facts": dict(self.facts),
            "problems": [p.to_json() for p in self.problems],
            "warnings": list(self.warnings),
        }


def read_hosts(path: Path, *, python: str = "") -> tuple[Host, ...]:
    """The hosts of a file: one a line, `NAME [python=EXE] [cwd=FOLDER]`, `#` for comments.

    Args:
        path: the file.
        python: the interpreter of hosts whose line names none.

    Raises:
        UsageError: E213, listing every line that is wrong.
    """
    hosts: dict[str, Host] = {}
    problems = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        words = shlex.split(line, comments=True)
        if not words:
            continue
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        wrong = words[0].startswith("-") or words[0] in hosts or set(options) - {"python", "cwd"}
        if wrong or len(options) != len(words) - 1:
            message = f"{path}:{number}: {line.strip()!r} is no NAME [python=EXE] [cwd=FOLDER]"
            if words[0] in hosts:
                message = f"{path}:{number}: {words[0]} is listed twice"
            problems.append(Problem(code="E213", path=str(path), line=number, message=message))
            continue
        chosen = options.get("python", python or "python3")
        hosts[words[0]] = Host(words[0], chosen, options.get("cwd", ""))
    if not hosts and not problems:
        problems.append(Problem(code="E213", path=str(path), message=f"{path} names no host"))
    if problems:
        raise UsageError(*problems)
    return tuple(hosts.values())


@dataclass(frozen=True)
class HostsRun:
    """How hosts are asked.

    Attributes:
        ssh: the client with its options, as in a shell.
        parallel: hosts asked at once.
        timeout_s: limit for one host, connecting included.
        lock: what the installed build must be; else the hosts are compared with each other only.
    """

    ssh: str = "ssh"
    parallel: int = 16
    timeout_s: float = 60.0
    lock: Lock | None = None

    def verify(self, hosts: Sequence[Host]) -> list[HostReport]:
        """Ask all hosts, and compare them; reports are in the order of `hosts`."""
        with ThreadPoolExecutor(max(1, min(self.parallel, len(hosts)))) as pool:
            return compare_hosts(list(pool.map(self._ask, hosts)))

    def _ask(self, host: Host) -> HostReport:
        try:
            done = subprocess.run(
                self._command(host),
                input=PROBE.read_bytes(),
                capture_output=True,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            message = f"gave no answer within {self.timeout_s:g} s"
            return _failed(host, "hangs", "E921", message, "raise --timeout, or look at the host")
        except OSError as error:
            message = f"cannot start {self.ssh}: {error.strerror}"
            return _failed(host, "unreachable", "E921", message, "install an OpenSSH client")
        said = done.stdout.decode("utf-8", "replace")
        complaint = " ".join(done.stderr.decode("utf-8", "replace").split()) or "no message"
        if done.returncode == 255:
            hint = f"`{self.ssh} {host.name}` must work without a question"
            return _failed(host, "unreachable", "E921", f"ssh: {complaint}", hint)
        try:
            found = read_probe(said)
        except ValueError:
            message = f"{host.python} did not run (exit code {done.returncode}): {complaint}"
            hint = "name the training interpreter with python=EXE in the hosts file"
            return _failed(host, "no python", "E922", message, hint)
        return self._judge(host, found)

    def _command(self, host: Host) -> list[str]:
        wait = str(max(1, min(int(self.timeout_s), 20)))
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={wait}", "-T"]
        remote = f"exec {shlex.quote(host.python)} -"
        if host.cwd:
            remote = f"cd {shlex.quote(host.cwd)} && {remote}"
        return [*shlex.split(self.ssh), *options, "--", host.name, remote]

    def _judge(self, host: Host, found: Mapping[str, Any]) -> HostReport:
        builds = {entry.build_json_sha256 for entry in self.lock.wheels} if self.lock else set()
        verdict = judge(found, build_sha256=frozenset(builds))
        facts = {
            "build": verdict.digest,
            "version": verdict.version,
            **found["versions"],
            "python": found["python"],
            "machine": found["machine"],
            "cann": found["cann"],
            "node": found["node"],
        }
        problems = relocate(verdict.problems, host.name)
        return HostReport(host, "wrong" if problems else "ok", problems, facts)


def compare_hosts(reports: list[HostReport]) -> list[HostReport]:
    """Mark the hosts that differ from most of those that answered."""
    answered = [report for report in reports if report.facts]
    usual = {name: _most_common(report.facts[name] for report in answered) for name in (
        *_SAME, *_SHOULD_BE_SAME)}  # fmt: skip
    return [_compare(report, usual) if report.facts else report for report in reports]


def _compare(report: HostReport, usual: Mapping[str, str]) -> HostReport:
    name = report.host.name
    odd = [
        f"{fact} is {report.facts[fact] or 'absent'}, on most hosts {usual[fact] or 'absent'}"
        for fact in _SAME
        if report.facts[fact] != usual[fact]
    ]
    warnings = tuple(
        f"{fact} is {report.facts[fact] or 'absent'}, on most hosts {usual[fact] or 'absent'}"
        for fact in _SHOULD_BE_SAME
        if report.facts[fact] != usual[fact]
    )
    problems = tuple(Problem(code="E923", message=f"{name}: {text}") for text in odd)
    state = "differs" if odd and report.state == "ok" else report.state
    return replace(report, state=state, problems=report.problems + problems, warnings=warnings)


def _most_common(values: Iterable[str]) -> str:
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else ""


def _failed(host: Host, state: str, code: str, message: str, hint: str) -> HostReport:
    problem = Problem(code=code, message=f"{host.name}: {message}", hint=hint)
    return HostReport(host, state, (problem,))
