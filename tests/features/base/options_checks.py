"""What is checked of base/options inside a tree with the options of `options_sample`."""

import contextlib
import copy
import dataclasses
import importlib
import inspect
import io
import logging
import pickle
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any

SMALL: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
HETEROGENEOUS = (
    '{"block_configs": ['
    '{"attention": {"n_heads_in_group": 1, "no_op": false, "replace_with_linear": false},'
    ' "mlp": {"ffn_mult": 2.0, "no_op": false, "replace_with_linear": false}},'
    '{"attention": {"n_heads_in_group": null, "no_op": true, "replace_with_linear": false},'
    ' "mlp": {"ffn_mult": null, "no_op": true, "replace_with_linear": false}}]}'
)
TRANSFORMER = "megatron.core.transformer.transformer_config"
CLASSES = {
    "ModelParallelConfig": "megatron.core.model_parallel_config",
    "TransformerConfig": TRANSFORMER,
    "MLATransformerConfig": TRANSFORMER,
    "HeterogeneousTransformerConfig": (
        "megatron.core.transformer.heterogeneous.heterogeneous_config"
    ),
    "OptimizerConfig": "megatron.core.optimizer.optimizer_config",
    "DistributedDataParallelConfig": "megatron.core.distributed.distributed_data_parallel_config",
}


def lend_triton(tree: str) -> None:
    """Let the modules of a pristine tree that cannot do without Triton import a stand-in."""
    from pathlib import Path

    from harness.triton_stub import find_unguarded, serve_triton

    serve_triton(find_unguarded(Path(tree)))


def list_imports() -> list[str]:
    """What `import megatron.core` brings into a process, by top package; ours in full."""
    before = set(sys.modules)
    importlib.import_module("megatron.core")
    new = set(sys.modules) - before
    return sorted({n if n.startswith("mindspeed") else n.partition(".")[0] for n in new})


def get_class(name: str) -> Any:
    """A config class of Megatron's."""
    return getattr(importlib.import_module(CLASSES[name]), name)


def list_positional() -> dict[str, list[str]]:
    """Of each config class, the parameters that a positional argument reaches, in order."""
    return {
        name: [
            parameter.name
            for parameter in inspect.signature(get_class(name)).parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        for name in CLASSES
    }


def list_options() -> dict[str, dict[str, Any]]:
    """Of each config class, its keyword-only fields with their defaults."""
    found = {}
    for name in CLASSES:
        fields = [field for field in dataclasses.fields(get_class(name)) if field.kw_only]
        found[name] = {field.name: field.default for field in fields}
    return found


def _subclasses() -> dict[str, Callable[..., Any]]:
    """Config classes as frameworks derive them, by name; each takes keywords."""
    base = get_class("TransformerConfig")

    @dataclasses.dataclass
    class Provider(base):  # type: ignore[misc,valid-type]
        """A dataclass with fields of its own, whose `__post_init__` is put off."""

        vocab_size: int = 128

        def __post_init__(self) -> None:
            pass

        def finalize(self) -> None:
            super().__post_init__()

    class Own(base):  # type: ignore[misc,valid-type]
        """An `__init__` of its own, taking one thing more."""

        def __init__(self, *, model_type: str = "llama", **rest: Any) -> None:
            self.model_type = model_type
            super().__init__(**rest)

    class Lazy(base):  # type: ignore[misc,valid-type]
        """Never calls the dataclass's own `__init__`."""

        def __init__(self, **settings: Any) -> None:
            for key, value in settings.items():
                setattr(self, key, value)

    return {"Provider": Provider, "Own": Own, "Lazy": Lazy}


def make_config(name: str, **settings: Any) -> Any:
    """A small config of a class of Megatron's, or of one derived from it."""
    kind = get_class(name) if name in CLASSES else _subclasses()[name]
    if name == "HeterogeneousTransformerConfig":
        settings = {"heterogeneous_layers_config_encoded_json": HETEROGENEOUS} | settings
    needs_size = name in _subclasses() or name.endswith("TransformerConfig")
    return kind(**(SMALL if needs_size else {}), **settings)


def find_broken_habits() -> list[str]:
    """What frameworks do with configs and no longer works; empty is good."""
    changes: dict[str, tuple[str, Any]] = {
        "OptimizerConfig": ("sample_adam", 0.5),
        "DistributedDataParallelConfig": ("sample_bucket", 8),
    }
    problems = []
    for name in (*CLASSES, "Provider", "Own", "Lazy"):
        field, value = changes.get(name, ("sample_sizes", [3]))
        config = make_config(name, **{field: value})
        for way, act in _ways_to_remake(name).items():
            try:
                good = getattr(act(config), field) == value
            except Exception as error:
                problems.append(f"{name} {way}: {type(error).__name__}: {error}")
            else:
                problems += [] if good else [f"{name} {way}: lost {field}"]
        if name != "Lazy" and f"{field}={value!r}" not in repr(config):
            problems.append(f"{name} repr: lacks {field}")
        if getattr(make_config(name), field) == value:
            problems.append(f"{name}: one config changed the default of all")
    return problems


def _ways_to_remake(name: str) -> dict[str, Callable[[Any], Any]]:
    """Ways to get a config from an equal one, of those that its class takes."""

    def rebuild(config: Any) -> Any:
        settings = dataclasses.asdict(config)
        settings.pop("per_block_parameters", None)  # what a heterogeneous config derives
        return get_class(name)(**settings)

    ways: dict[str, Callable[[Any], Any]] = {"copy": copy.copy, "deepcopy": copy.deepcopy}
    if name in CLASSES:
        ways |= {"replace": dataclasses.replace, "asdict": rebuild}
    if name in ("OptimizerConfig", "DistributedDataParallelConfig", "ModelParallelConfig"):
        ways["pickle"] = lambda config: pickle.loads(pickle.dumps(config))  # others hold lambdas
    return ways


def read_layer_config() -> dict[str, Any]:
    """Options of a heterogeneous model, as its first layer's own config has them."""
    config = make_config("HeterogeneousTransformerConfig", sample_kind="round", sample_count=3)
    layer = config.get_config_for_layer(1)
    return {"kind": layer.sample_kind, "count": layer.sample_count, "class": type(layer).__name__}


def _say(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def break_rules() -> dict[str, str]:
    """What configs say that break rules, by what they break."""
    attention = importlib.import_module("megatron.core.transformer.enums").AttnBackend
    good = {"sample_parts": True, "sample_kind": "round", "sequence_parallel": True}
    good["tensor_model_parallel_size"] = 2
    cases: dict[str, dict[str, Any]] = {
        "nothing": good,
        "type": {"sample_count": "3"},
        "bool for int": {"sample_count": True},
        "list": {"sample_sizes": 3},
        "item": {"sample_sizes": [1, "2"]},
        "choice": {"sample_kind": "square"},
        "minimum": {"sample_count": 1},
        "requires": good | {"sample_kind": "plain"},
        "conflicts": good | {"attention_backend": attention.flash},
        "function": good | {"num_layers": 3},
        "all": {
            "sample_parts": True,
            "sample_count": 0,
            "num_layers": 3,
            "attention_backend": attention.fused,
        },
    }
    kind = get_class("TransformerConfig")
    said = {name: _say(partial(kind, **(SMALL | s))) for name, s in cases.items()}
    said["optimizer"] = _say(lambda: get_class("OptimizerConfig")(sample_adam=-1.0))
    ddp = get_class("DistributedDataParallelConfig")
    said["data parallel"] = _say(lambda: ddp(sample_bucket=0))
    return said


def find_impurity() -> list[str]:
    """What validation changes, or says only once; empty is good."""
    from mindspeed.core.options.rules import validate

    config = make_config("TransformerConfig", sample_kind="round", sample_count=3)
    before = copy.deepcopy(vars(config))
    problems = []
    for _ in range(2):
        validate(config)
    if {k: repr(v) for k, v in before.items()} != {k: repr(v) for k, v in vars(config).items()}:
        problems.append("a valid config was changed")
    config.sample_count = 1
    if len({_say(lambda: validate(config)) for _ in range(3)}) != 1:
        problems.append("an invalid config is not always refused alike")
    return problems


def change_after_construction() -> dict[str, str]:
    """What is said when fields are set late and something is built from the config."""
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.core.transformer.module import MegatronModule

    said = {}
    for name in ("TransformerConfig", "MLATransformerConfig", "Provider", "Own", "Lazy"):
        config = make_config(name)
        config.sample_kind = "square"
        said[name] = _say(partial(MegatronModule, config))
    good = make_config("TransformerConfig")
    good.sample_kind = "round"
    said["good"] = _say(lambda: MegatronModule(good))
    said["no config"] = _say(lambda: MegatronModule(None))
    optimizer = make_config("OptimizerConfig")
    optimizer.sample_adam = -1.0
    said["optimizer"] = _say(lambda: get_megatron_optimizer(optimizer, []))
    ddp = make_config("DistributedDataParallelConfig")
    ddp.sample_bucket = 0
    module = MegatronModule(good)
    said["data parallel"] = _say(lambda: DistributedDataParallel(good, ddp, module))
    finalized = make_config("Provider")
    finalized.sample_kind = "square"
    said["finalize"] = _say(finalized.finalize)
    return said


def collect_logs() -> list[str]:
    """Everything logged while modules are built from three configs, two of them alike."""
    from megatron.core.transformer.module import MegatronModule

    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    logger = logging.getLogger("mindspeed")
    keep = Keep()
    logger.addHandler(keep)
    logger.setLevel(logging.INFO)
    for count in (11, 11, 12):
        config = make_config("TransformerConfig", sample_count=count, optimization_level=1)
        for _ in range(3):
            MegatronModule(config)
    logger.removeHandler(keep)
    return records


def misspell() -> dict[str, str]:
    """What is said about names that a config does not have."""
    from megatron.core.transformer.module import MegatronModule

    def build(name: str, **attributes: Any) -> str:
        config = make_config(name)
        for key, value in attributes.items():
            setattr(config, key, value)
        return _say(lambda: MegatronModule(config))

    return {
        "near": _say(lambda: make_config("TransformerConfig", sample_cont=3)),
        "near, derived": _say(lambda: make_config("Provider", sample_cont=3)),
        "near, optimizer": _say(lambda: make_config("OptimizerConfig", sample_adamm=1.0)),
        "absent": _say(lambda: make_config("MLATransformerConfig", absent_thing=True)),
        "far": _say(lambda: make_config("TransformerConfig", something_else=3)),
        "other keyword": _say(lambda: make_config("Own", model_type="qwen")),
        "attribute near": build("TransformerConfig", sample_cont=3),
        "attribute absent": build("Own", absent_thing=True),
        "attribute absent, off": build("Own", absent_thing=False),
        "attribute far": build("TransformerConfig", hf_model_type="qwen"),
        "attribute own": build("Lazy", model_type="qwen"),
    }


def map_to_upstream() -> dict[str, Any]:
    """What an option does that Megatron has under another name on some releases."""
    from megatron.core.transformer.module import MegatronModule

    field = "deallocate_pipeline_outputs"
    late = make_config("TransformerConfig")
    late.sample_dealloc = True
    MegatronModule(late)
    disagreeing = make_config("TransformerConfig", sample_dealloc=True)
    setattr(disagreeing, field, "other")
    return {
        "off": getattr(make_config("TransformerConfig"), field),
        "on": getattr(make_config("TransformerConfig", sample_dealloc=True), field),
        "late": getattr(late, field),
        "disagreeing": _say(lambda: MegatronModule(disagreeing)),
    }


def read_status() -> dict[str, Any]:
    """`mindspeed.status()` of one config, and the rewrites that levels switch on."""
    import mindspeed
    from megatron.core.transformer.module import MegatronModule
    from mindspeed.core.options import describe_model, is_rewrite_on

    kind = "TransformerConfig"
    config = make_config(kind, sample_kind="round", sample_dealloc=True, optimization_level=1)
    status = mindspeed.status(config)
    levels = [make_config(kind, optimization_level=level) for level in (None, 0, 1, 2)]
    return {
        "text": str(status),
        "main": _run_main(),
        "model": describe_model(MegatronModule(config)),
        "active": status.configs[0].active,
        "inactive": status.configs[0].inactive,
        "options": status.options,
        "rewrites": [is_rewrite_on(config, "sample/rewrite") for config in levels],
        "options as rewrites": [is_rewrite_on(config, "sample/options") for config in levels],
    }


def _run_main() -> str:
    """What `python -m mindspeed` prints."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        runpy.run_module("mindspeed", run_name="__main__")
    return stream.getvalue()


def parse_plainly(flags: list[str]) -> dict[str, Any]:
    """The options of a parser that is not Megatron's, and of a namespace without any."""
    from argparse import Namespace

    from mindspeed.arguments import add_mindspeed_args, process_args

    parser = ArgumentParser(allow_abbrev=False)
    parser.add_argument("--sample-kind", default="mine")  # a framework has it already
    parser = add_mindspeed_args(add_mindspeed_args(parser))
    assert "2 % of something" in " ".join(parser.format_help().split())
    return {
        "parsed": _options_of(parser.parse_args(flags)),
        "empty": _options_of(process_args(Namespace())),
        "absent": _say_exit(parser, ["--absent-thing"]),
        "of MindSpeed": _say_exit(parser, ["--coc-mode=1", "--nonsense"]),
    }


def parse_with_megatron(flags: list[str]) -> dict[str, Any]:
    """Megatron's own parser, and the transformer config that Megatron makes of it."""
    from megatron.training import arguments

    parser = ArgumentParser(allow_abbrev=False)
    parser = arguments.add_megatron_arguments(parser)
    importlib.import_module("mindspeed.arguments").add_mindspeed_args(parser)
    needed = [
        "--num-layers",
        "2",
        "--hidden-size",
        "16",
        "--num-attention-heads",
        "2",
        "--no-rope-fusion",
    ]
    args = parser.parse_args([*needed, *flags])
    ours = [flag for action in parser._actions for flag in action.option_strings]
    torch = sys.modules["torch"]
    args.params_dtype = torch.float32  # what validate_args would derive
    config = arguments.core_transformer_config_from_args(args)
    names = ("sample_count", "sample_sizes", "use_flash_attn")
    return {
        "parsed": _options_of(args),
        "twice": sorted({flag for flag in ours if ours.count(flag) > 1}),
        "config": {key: getattr(config, key) for key in names},
        "dispatcher": args.moe_token_dispatcher_type,
    }


def _options_of(args: Any) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(args).items()
        if key in ("optimization_level", "use_flash_attn")
        or (key.startswith("sample_") and key != "sample_rate")
    }


def _say_exit(parser: ArgumentParser, flags: list[str]) -> str:
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream), contextlib.suppress(SystemExit):
        parser.parse_args(flags)
    return stream.getvalue()


def import_first(name: str) -> dict[str, Any]:
    """Import one module before any other, then look at the options of every config class."""
    importlib.import_module(name)
    return {**list_options(), "said": break_rules()["all"]}
