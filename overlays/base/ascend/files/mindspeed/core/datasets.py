"""What the patched `megatron.core.datasets` calls."""


def has_compiled_helpers() -> bool:
    """Whether the C++ index helpers import, so that there is nothing to compile.

    Wheels bring them compiled and bring no Makefile: compiling there can only fail.
    """
    try:
        from megatron.core.datasets import helpers_cpp  # noqa: F401
    except ImportError:
        return False
    return True
