"""A simulated Ascend device: the real torch_npu on any CPU machine."""
