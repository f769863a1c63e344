"""What `mindspeed.te` does not do, said in one form."""

from collections.abc import Iterator
from typing import Any, NoReturn


def refuse(what: str) -> NoReturn:
    """Raise for something that only TransformerEngine itself can do.

    Raises:
        RuntimeError: always; names `what`.
    """
    raise RuntimeError(
        f"{what} needs an installed transformer_engine (such as TransformerEngineNPU); "
        "mindspeed.te, which stands in for it, cannot do this"
    )


def refuse_unsupported(module: Any, arguments: dict[str, Any]) -> None:
    """Check what a wrapper asks of a module at construction.

    Args:
        module: under construction; upstream's wrappers have set its `config` by then.
        arguments: keyword arguments that the module itself has no use for.

    Raises:
        RuntimeError: low precision, overlap with userbuffers, delayed weight gradients or a
            symmetric all-reduce are asked for.
        TypeError: an argument that TransformerEngine's module has not either.
    """
    reasons = [*_find_in_config(getattr(module, "config", None)), *_find_in_arguments(arguments)]
    if reasons:
        refuse(f"{type(module).__name__}: {', '.join(reasons)}")


def _find_in_config(config: Any) -> Iterator[str]:
    for name in ("fp8", "fp4", "quant_recipe"):
        value = getattr(config, name, None)
        if value:
            yield f"{name}={value}"


def _find_in_arguments(arguments: dict[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        if name == "ub_name":
            continue  # a label: it asks for nothing
        if name.startswith("ub_"):
            if value:
                yield f"tp_comm_overlap ({name})"
        elif name in ("delay_wgrad_compute", "symmetric_ar_type", "parameters_split"):
            if value:
                yield f"{name}={value}"
        else:
            raise TypeError(f"unexpected argument {name!r}")
