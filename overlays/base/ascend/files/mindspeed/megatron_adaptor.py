"""Kept for the scripts that import it: the features need no adaptor any more.

`import mindspeed.megatron_adaptor` patches nothing. It makes sure that the Megatron which will run
is the patched one (else the features would be missing without a word), and prepares the device,
which importing `megatron.core` does as well. It may stand before or after any other import.
"""

import importlib
from typing import Any

from mindspeed.core.device import prepare_device
from mindspeed.core.origin import check_origin


def repatch(args: Any) -> None:
    """Check that the options in `args`, a mapping or a namespace, are in this build.

    Frameworks call it with options that they set later. There is nothing to patch: setting them on
    Megatron's config is what switches features on.
    """
    try:
        module = importlib.import_module("mindspeed.args_utils")
    except ModuleNotFoundError as error:
        raise RuntimeError("repatch needs base/dropin, which this build has not") from error
    module.check_options(args)


check_origin()
prepare_device()
