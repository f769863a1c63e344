"""Kernels run on CPU tensors, but their random masks need torch_npu: install the device."""

import ascend_sim

ascend_sim.install()
