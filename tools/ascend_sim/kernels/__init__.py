"""Reference kernels of the `npu::` operators, one module a family.

Importing this package registers all of them.
"""

from ascend_sim.kernels import activation, norm, rope

__all__ = ["activation", "norm", "rope"]
