"""What is open after a port as SARIF 2.1.0, for code-scanning views."""

import json
from typing import Any

from mindspeed_overlay import __version__
from mindspeed_overlay.errors import Problem
from mindspeed_overlay.port.engine import Ported
from mindspeed_overlay.port.report import list_problems

RULES = {
    "E530": "An edit conflicts with what upstream changed",
    "E531": "The target of a patch is gone",
    "E532": "An overlay that is required has a conflict",
    "E533": "A merge applies and is still wrong",
}


def render_sarif(ported: Ported) -> str:
    """The SARIF log; paths are those of the new release."""
    run = {
        "tool": {
            "driver": {
                "name": "mindspeed-overlay port",
                "version": __version__,
                "rules": [
                    {"id": code, "shortDescription": {"text": text}} for code, text in RULES.items()
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
    result: dict[str, Any] = {
        "ruleId": problem.code,
        "level": "error",
        "message": {"text": f"{problem.overlay}: {problem.message}"},
    }
    if problem.path:
        place: dict[str, Any] = {"artifactLocation": {"uri": problem.path}}
        if problem.line:
            place["region"] = {"startLine": problem.line}
        names = [{"fullyQualifiedName": problem.symbol}] if problem.symbol else []
        result["locations"] = [{"physicalLocation": place, "logicalLocations": names}]
    return result
