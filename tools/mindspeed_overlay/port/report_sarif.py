"""What is open after a port as SARIF 2.1.0, for code-scanning views."""

import json
from typing import Any

from mindspeed_overlay import __version__
from mindspeed_overlay.errors import Problem
from mindspeed_overlay.port.engine import Ported
from mindspeed_overlay.port.report import list_problems
from mindspeed_overlay.tree import sha256

RULES = {
    "E530": ("EditConflicts", "An edit conflicts with what upstream changed"),
    "E531": ("TargetGone", "The target of a patch is gone"),
    "E532": ("RequirementConflicts", "An overlay that is required has a conflict"),
    "E533": ("MergeIsWrong", "A merge applies and is still wrong"),
}


def render_sarif(ported: Ported) -> str:
    """The SARIF log; paths are those of the new release."""
    run = {
        "tool": {
            "driver": {
                "name": "mindspeed-overlay port",
                "version": __version__,
                "rules": [
                    {"id": code, "name": name, "shortDescription": {"text": text}}
                    for code, (name, text) in RULES.items()
                ],
            }
        },
        "results": [_to_result(problem) for problem in list_problems(ported)],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json.dumps(log, indent=2) + "\n"


def _to_result(problem: Problem) -> dict[str, Any]:
    # Viewers drop results without a place: what lies in no file lies in the overlay's own.
    path = problem.path or f"overlays/{problem.overlay}/overlay.toml"
    names = [{"fullyQualifiedName": problem.symbol, "kind": "member"}] if problem.symbol else []
    identity = (problem.code, problem.overlay, problem.patch, str(problem.hunk), problem.symbol)
    return {
        "ruleId": problem.code,
        "ruleIndex": list(RULES).index(problem.code),
        "level": "error",
        "message": {"text": f"{problem.overlay}: {problem.message}. {problem.hint}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": path},
                    "region": {"startLine": max(problem.line, 1)},
                },
                "logicalLocations": names,
            }
        ],
        # The same problem of the next run, though its line moved.
        "partialFingerprints": {"overlayHunk/v1": sha256("\0".join(identity).encode())},
        "properties": {
            "overlay": problem.overlay,
            "patch": problem.patch,
            "hunk": problem.hunk,
        },
    }
