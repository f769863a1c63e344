"""What stands in for `transformer_engine` where there is none: `mindspeed.te.pytorch` and
`.common`.

Upstream's wrappers (`megatron.core.extensions.transformer_engine`) subclass TransformerEngine's
modules. The modules here have the constructors, the state-dict keys and the parameter attributes
of TransformerEngine 2.0, which the wrappers rely on, and compute with torch and torch_npu in the
dtype of the parameters. Low precision and communication overlap are refused by name.

Nothing is put under the name `transformer_engine`: `mindspeed.core.te_choice` says which of the
two to use.
"""

from mindspeed.te import common, pytorch

__version__ = "2.0.0+mindspeed"
"""The version that upstream's checks see.

2.0.0 is the oldest with today's checkpoint format (extra state is a byte tensor), and older than
everything in upstream's branches that is missing here: delayed weight gradients and symmetric
all-reduce (2.3), router kernels (2.7), softmax offset (2.8), qk-clip (2.9), splits (2.10). So those
checks refuse what is missing, in upstream's own words.
"""

__all__ = ["__version__", "common", "pytorch"]
