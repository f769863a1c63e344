"""An overlay set with options of every kind, beside the real overlays that make them work."""

import shutil
from pathlib import Path

from mindspeed_overlay.data import default_overlays

OVERLAYS = ("sample/options", "sample/rewrite")
"""What a build under test has; `sample/absent` is in the set and not in the build."""

_REAL = ("base/ascend", "base/options")

_HEAD = """\
id = "{id}"
summary = "{id} for tests"
level = 1
requires = ["base/options"]
"""

_OPTIONS = """
[[option]]
flag = "--sample-count"
field = "sample_count"
config = "TransformerConfig"
type = "int"
minimum = 2
help = "At least 2 % of something"

[[option]]
flag = "--sample-kind"
field = "sample_kind"
config = "TransformerConfig"
type = "str"
default = "plain"
choices = ["plain", "round"]
help = "A kind"

[[option]]
flag = "--sample-sizes"
field = "sample_sizes"
config = "ModelParallelConfig"
type = "list[int]"
default = [1, 2]
help = "Sizes"

[[option]]
flag = "--no-sample-check"
field = "sample_check"
config = "TransformerConfig"
type = "bool"
default = true
help = "On unless it is switched off"

[[option]]
flag = "--sample-parts"
field = "sample_parts"
config = "TransformerConfig"
type = "bool"
default = false
requires = ["sequence_parallel", "sample_kind=round"]
conflicts = ["attention_backend=flash|fused", "sample_count"]
checks = ["mindspeed.core.sample:check_parts"]
help = "With rules of every kind"

[[option]]
flag = "--sample-adam"
field = "sample_adam"
config = "OptimizerConfig"
type = "float"
default = 0.0
minimum = 0.0
help = "Of the optimizer"

[[option]]
flag = "--sample-bucket"
field = "sample_bucket"
config = "DistributedDataParallelConfig"
type = "int"
minimum = 1
help = "Of the data-parallel wrapper"

[[option]]
flag = "--moe-token-dispatcher-type"
field = "moe_token_dispatcher_type"
config = "TransformerConfig"
type = "str"
choices = ["sample"]
extends = true
help = "One choice more"

[[option]]
flag = "--use-flash-attn"
field = "use_flash_attn"
config = "TransformerConfig"
type = "bool"
default = false
flag_owner = "upstream"
help = "Megatron lists the flag by hand and has no field"

[[option]]
flag = "--sample-dealloc"
field = "sample_dealloc"
config = "TransformerConfig"
type = "bool"
default = false
owner = "upstream since core_v0.16.1"
maps = { field = "deallocate_pipeline_outputs", value = true }
help = "What Megatron calls deallocate_pipeline_outputs"

[[option]]
flag = "--sequence-parallel"
field = "sequence_parallel"
config = "ModelParallelConfig"
type = "bool"
default = false
owner = "upstream since core_v0.12.1"
help = "Megatron's own"
"""

_ABSENT = """
[[option]]
flag = "--absent-thing"
field = "absent_thing"
config = "TransformerConfig"
type = "bool"
default = false
help = "Not in the build"
"""

_RULE = '''\
"""A rule function of a sample overlay."""


def check_parts(config):
    """num_layers must be even."""
    if config.num_layers % 2:
        yield f"num_layers is odd, {config.num_layers}", "make it even"
'''


def write_sample_set(folder: Path) -> Path:
    """Write the set into `folder`, which does not exist."""
    for name in _REAL:
        shutil.copytree(default_overlays() / name, folder / name)
    tables = {
        "sample/options": _OPTIONS,
        "sample/rewrite": "by-level = true\n",
        "sample/absent": _ABSENT,
    }
    for name, rest in tables.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "overlay.toml").write_text(_HEAD.format(id=name) + rest)
    module = folder / "sample/options/files/mindspeed/core/sample.py"
    module.parent.mkdir(parents=True)
    module.write_text(_RULE)
    names = "\n".join((*_REAL, *tables))
    (folder / "series").write_text(f"revision 1\n{names}\n")
    return folder
