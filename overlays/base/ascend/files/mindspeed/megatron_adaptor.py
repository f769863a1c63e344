"""Kept for the scripts that import it: the features need no adaptor any more.

`import mindspeed.megatron_adaptor` patches nothing. It makes sure that the Megatron which will run
is the patched one (else the features would be missing without a word), and prepares the device,
which importing `megatron.core` does as well. It may stand before or after any other import.
"""

from mindspeed.core.device import prepare_device
from mindspeed.core.origin import check_origin

check_origin()
prepare_device()
