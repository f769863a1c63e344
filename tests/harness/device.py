"""Prepare the device of scenario processes as Ascend users do."""

import warnings


def prepare() -> None:
    """Install the simulated device where there is no real one, and import `transfer_to_npu`.

    The pristine tree needs the latter as well: upstream says `torch.cuda` everywhere.
    """
    import ascend_sim
    from ascend_sim.autoload import has_cann

    if not has_cann():
        ascend_sim.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it lists every name that it replaces
        from torch_npu.contrib import transfer_to_npu  # noqa: F401
