"""What `test_matmul_add` asks a process without an NPU."""


def ask_without_npu() -> str:
    """What a linear layer says to gradient_accumulation_fusion where there is no NPU."""
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    config = ModelParallelConfig(gradient_accumulation_fusion=True, use_cpu_initialization=True)
    try:
        ColumnParallelLinear(4, 4, config=config, init_method=lambda weight: weight)
    except RuntimeError as error:
        return str(error)
    return ""
