"""The recipes of the docs, as far as a machine without clusters can try them."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

DOCS = Path(__file__).parents[2] / "docs/cluster"
SCRIPTS = Path(sys.executable).parent


def run(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    program = shutil.which(name, path=str(SCRIPTS)) or shutil.which(name)
    assert program, f"{name} comes with the extra `test`"
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["torchrun.sh", "slurm.sbatch"])
def test_shell_recipes_have_no_finding(name: str) -> None:
    assert run("bash", "-n", DOCS / name).returncode == 0
    done = run("shellcheck", DOCS / name)
    assert done.returncode == 0, done.stdout


def test_the_containerfile_has_no_finding(tmp_path: Path) -> None:
    done = run("hadolint", DOCS / "Containerfile")
    assert done.returncode == 0, done.stdout
    broken = tmp_path / "Containerfile"
    broken.write_text((DOCS / "Containerfile").read_text().replace("RUN mkdir", "RUM mkdir"))
    assert run("hadolint", broken).returncode != 0


def test_the_pods_of_the_volcano_job_are_valid_for_kubernetes() -> None:
    job = yaml.safe_load((DOCS / "volcano-job.yaml").read_text())
    assert job["apiVersion"] == "batch.volcano.sh/v1alpha1"
    for task in job["spec"]["tasks"]:
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": task["name"]},
        }
        pod["spec"] = task["template"]["spec"]
        version = kubernetes_validate.latest_version()
        kubernetes_validate.validate(pod, version, strict=True)
        pod["spec"] = {**pod["spec"], "restartPolicies": "Never"}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(pod, version, strict=True)
    assert job["spec"]["minAvailable"] == sum(task["replicas"] for task in job["spec"]["tasks"])


def test_the_shell_inside_the_volcano_job_has_no_finding(tmp_path: Path) -> None:
    job = yaml.safe_load((DOCS / "volcano-job.yaml").read_text())
    (container,) = job["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert container["command"] == ["bash", "-c"]
    script = tmp_path / "args.sh"
    script.write_text("#!/bin/bash\n" + container["args"][0])
    done = run("shellcheck", script)
    assert done.returncode == 0, done.stdout
