"""MindSpeed's operators under its names, each one call of torch_npu.

MindSpeed compiles its own on first use and has frozen them in favour of torch_npu's. An operator
that torch_npu lacks has no module here, and importing it says so.
"""
