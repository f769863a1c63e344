"""Distributed checkpoints between the local layer spec and the one with TransformerEngine's names.

Both specs save their parameters under the same names; that is upstream's doing. What only the other
one has is `_extra_state` of TransformerEngine's norms, at core 0.12 of its attention too, as of
TransformerEngine itself from 1.13 on. It is empty here: a checkpoint without it has lost nothing,
and a model without it has no use for one. Upstream can load neither with raise_all.
"""

from typing import Any

import torch

_SUFFIX = "_extra_state"


def keep_absent_extra_state(wanted: Any, strategy: Any, folder: Any) -> Any:
    """Ask a checkpoint only for that empty extra state that it has; keep the model's else.

    Args:
        wanted: a sharded state dict, about to be loaded.
        strategy: the strategy to load sharded values with.
        folder: of the checkpoint.

    Returns:
        The same, or a copy in which each empty extra state whose key the checkpoint lacks is a
        LocalNonpersistentObject.
    """
    from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, nested_values
    from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject

    if not any(_is_empty_extra_state(value) for value in nested_values(wanted)):
        return wanted
    present = {entry.key for entry in strategy.load_sharded_metadata(folder).values()}

    def keep(value: Any) -> Any:
        if _is_empty_extra_state(value) and value.key not in present:
            return LocalNonpersistentObject(value.data)
        return value

    return dict_list_map_outplace(keep, wanted)


def forget_left_extra_state(present: Any, wanted: Any, strict: Any) -> Any:
    """What a checkpoint has, less the extra state that a model has no place for.

    A module that is missing is found by its weights. Only raise_all is answered differently than
    by upstream, which raises.

    Args:
        present: sharded metadata of the checkpoint, key to entry; None where it is not looked at.
        wanted: the sharded state dict that is loaded.
        strict: the StrictHandling asked for.
    """
    from megatron.core.dist_checkpointing.dict_utils import nested_values

    if present is None or strict.name != "RAISE_ALL":
        return present
    asked = {value.key for value in nested_values(wanted)}
    return {
        name: entry
        for name, entry in present.items()
        if entry.key in asked or not entry.key.endswith(_SUFFIX)
    }


def _is_empty_extra_state(value: Any) -> bool:
    """Whether this is what `mindspeed.te.pytorch.module.ExtraState` saves."""
    data = getattr(value, "data", None)
    return (
        type(value).__name__ == "ShardedObject"
        and value.key.endswith(_SUFFIX)
        and isinstance(data, torch.Tensor)
        and data.dtype is torch.uint8
        and data.numel() == 0
    )
