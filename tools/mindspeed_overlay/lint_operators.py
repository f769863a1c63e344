"""Ascend operator calls in new files, against the schemas of every torch_npu an overlay claims.

The schemas are lists that ascend_sim keeps of several torch_npu releases; neither torch nor
torch_npu is imported.
"""

from collections.abc import Iterator

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.tree import Files


def lint_operators(files: Files, *, overlay: str, floor: str) -> Iterator[Problem]:
    """E435: a call that a claimed torch_npu refuses, or a floor that no list satisfies.

    Args:
        files: the overlay's new files by path.
        overlay: its id.
        floor: the torch_npu releases it claims, such as `>=2.7.1`; empty means all that are listed.
    """
    from ascend_sim.contract.check_calls import judge_all, read_uses
    from ascend_sim.contract.schemas import release, versions

    chosen = versions(floor or ">=0")
    if not chosen:
        listed = ", ".join(versions())
        message = f"torch_npu = {floor!r} admits none of the listed releases: {listed}"
        yield Problem(code="E435", overlay=overlay, message=message, hint="edit overlay.toml")
        return
    for path, data in files.items():
        if not path.endswith(".py") or b"npu" not in data:
            continue
        uses = read_uses(data)
        for version in chosen:
            for found in judge_all(uses, path=path, against=release(version)):
                message = (
                    f"{path}:{found.line}: {found.name} with torch_npu {version}: {found.message}"
                )
                hint = (
                    "call it as every claimed torch_npu has it, or raise torch_npu in overlay.toml"
                )
                yield Problem(
                    code="E435",
                    overlay=overlay,
                    path=path,
                    line=found.line,
                    message=message,
                    hint=hint,
                )
