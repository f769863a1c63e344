"""`--collect`: one file about all ranks, with nothing in it that is not on the list."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from cluster.small_build import ASCEND_FILES, World


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("survey", ASCEND_FILES / "core/survey.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_listed_variables_leave_the_process() -> None:
    environment = {
        "HCCL_CONNECT_TIMEOUT": "1800",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "RANK": "3",
        "HF_TOKEN": "secret",
        "HCCL_SECRET_KEY": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "USER": "alice",
        "HOME": "/home/alice",
    }
    assert load().select_variables(environment) == {
        "HCCL_CONNECT_TIMEOUT": "1800",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "RANK": "3",
    }


def test_all_ranks_are_in_one_file_also_where_they_differ(
    small_world: World, install: Callable[..., Path], tmp_path: Path
) -> None:
    python = install(small_world.build(small_world.folder / "dist")[0])
    lent = next((python.parents[1] / "lib").glob("python*/site-packages")) / "lent.pth"
    lent.write_text(f"{Path(str(importlib.util.find_spec('torch').origin)).parents[1]}\n")  # type: ignore[union-attr]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    report = tmp_path / "report.json"
    running = []
    for rank in range(2):
        environment = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "HCCL_BUFFSIZE": str(100 + rank),
            "ASCEND_TOOLKIT_HOME": f"/cann/{rank}",
            "MY_TOKEN": "secret",
        }
        command = [str(python), "-m", "mindspeed.verify", "--collect", str(report)]
        command += ["--timeout", "60", "--require", "cann"]
        running.append(
            subprocess.Popen(
                command, env=environment, cwd="/", stderr=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
    said = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [9, 9], said
    assert b"cann is" in said[0][1]
    table = json.loads(report.read_text())
    assert table["absent"] == []
    assert table["ranks"]["1"]["environment"]["HCCL_BUFFSIZE"] == "101"
    assert table["ranks"]["0"]["facts"]["build"]
    assert "secret" not in report.read_text()


def test_doctor_asks_the_build_of_this_python(small_world: World, tmp_path: Path) -> None:
    """This Python has no build: the command says so, and fails."""
    done = subprocess.run(
        [sys.executable, "-m", "mindspeed_overlay", "doctor", "--cluster", tmp_path / "r.json"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "tools")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "mindspeed" in done.stderr
