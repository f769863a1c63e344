"""Distributed checkpoints between the local layer spec and the one with TransformerEngine's names.

Both specs save their parameters under the same names; that is upstream's doing. What only the other
one has is `_extra_state` of TransformerEngine's norms, as of TransformerEngine itself from 1.13 on.
It is empty here, so a checkpoint without it has lost nothing. Upstream cannot load one.
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
