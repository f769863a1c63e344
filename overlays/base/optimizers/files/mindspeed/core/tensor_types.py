"""Type names of device tensors, as Megatron's optimizers compare them."""

import torch


def read_cuda_type(tensor: torch.Tensor) -> str:
    """`tensor.type()`, where an NPU's name reads like CUDA's: `torch.cuda.FloatTensor`."""
    return tensor.type().replace("torch.npu.", "torch.cuda.", 1)
