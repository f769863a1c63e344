"""Hold the options of an overlay against a pristine release: who has field and flag."""

import re
from collections.abc import Iterator, Mapping

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.option import CONFIGS, Option
from mindspeed_overlay.overlay import Overlay

_FILES = {
    "ModelParallelConfig": "megatron/core/model_parallel_config.py",
    "TransformerConfig": "megatron/core/transformer/transformer_config.py",
    "OptimizerConfig": "megatron/core/optimizer/optimizer_config.py",
    "DistributedDataParallelConfig": (
        "megatron/core/distributed/distributed_data_parallel_config.py"
    ),
}
_ARGUMENTS = "megatron/training/arguments.py"
_FIELD = re.compile(r"^    (\w+): ", re.MULTILINE)


def check_options(
    overlay: Overlay, tag: str, order: tuple[str, ...], files: Mapping[str, bytes]
) -> list[Problem]:
    """Options whose `owner`, `maps` or `extends` a release contradicts.

    Args:
        overlay: whose options to look at.
        tag: the release.
        order: all releases, oldest first.
        files: the release's pristine files.
    """
    return [
        Problem(code="E436", overlay=overlay.id, message=f"{tag}: {option.flag}: {message}")
        for option in overlay.options
        for message in _find_faults(option, option.is_upstream(tag, order), files)
    ]


def _find_faults(option: Option, native: bool, files: Mapping[str, bytes]) -> Iterator[str]:
    upstream = {name for config in CONFIGS[option.config] for name in _fields(config, files)}
    is_ours = not option.extends and (not native or bool(option.maps))
    if is_ours and option.field in upstream:
        yield f"{option.config} has {option.field} upstream; say `owner = upstream since TAG`"
    # A flag may be extended that sets no config field, but an argument of a constructor.
    only_flag = option.extends and option.flag_owner == "upstream"
    if not is_ours and not only_flag and option.field not in upstream:
        yield f"{option.config} has no {option.field} upstream"
    if native and option.maps and option.maps["field"] not in upstream:
        yield f"maps to {option.maps['field']}, which {option.config} lacks"
    if not (is_ours or only_flag) or _ARGUMENTS not in files:
        return
    flag = re.compile(rb"""['"]%s['"]""" % option.flag.encode())
    listed = flag.search(files[_ARGUMENTS]) is not None
    if listed and option.flag_owner == "ours":
        yield f'{_ARGUMENTS} lists the flag; say `flag_owner = "upstream"`'
    if not listed and option.flag_owner == "upstream":
        yield f"{_ARGUMENTS} does not list the flag"


def _fields(config: str, files: Mapping[str, bytes]) -> set[str]:
    """The annotated names in the body of a config class."""
    text = files.get(_FILES[config], b"").decode("utf-8", "replace")
    body = re.search(rf"^class {config}\b.*?(?=^[^\s#)]|\Z)", text, re.MULTILINE | re.DOTALL)
    return set(_FIELD.findall(body[0])) if body else set()
