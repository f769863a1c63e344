"""Lists the `npu::` operators: schema, what serves them on the simulated device, document."""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import torch

import ascend_sim


class Served(StrEnum):
    """Who computes an operator on the simulated device."""

    REFERENCE = "reference"
    TORCH_NPU = "torch_npu"
    NOBODY = "none"


@dataclass(frozen=True)
class Operator:
    """One operator overload.

    Attributes:
        name: without namespace, with `.overload` where it has one.
        schema: as torch_npu registers it.
        served: by a reference kernel, by torch_npu's own code (no chip needed), or refused.
        document: the page that the reference kernel follows.
    """

    name: str
    schema: str
    served: Served
    document: str = ""


def list_operators() -> list[Operator]:
    """Every `npu::` operator of the running torch_npu, by name; installs the device."""
    ascend_sim.install()
    from ascend_sim.dispatch import DEVICE_KEY, KEPT_ASCEND
    from ascend_sim.registry import KERNELS

    operators = []
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("npu::"):
            continue
        name = f"{schema.name[5:]}.{schema.overload_name}".rstrip(".")
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", DEVICE_KEY)
        if name in KERNELS:
            served, document = Served.REFERENCE, KERNELS[name].document
        elif name in KEPT_ASCEND or not has_kernel:
            served, document = Served.TORCH_NPU, ""
        else:
            served, document = Served.NOBODY, ""
        operators.append(Operator(name, str(schema), served, document))
    return sorted(operators, key=lambda operator: operator.name)


def main(argv: Sequence[str] = ()) -> int:
    """`ops [--json]`: print the operators."""
    operators = list_operators()
    try:
        if "--json" in argv:
            print(json.dumps([asdict(operator) for operator in operators], indent=1))
        else:
            for one in operators:
                document = f"  [{one.document}]" if one.document else ""
                print(f"{one.served:<10} {one.schema}{document}")
            counts = Counter(one.served for one in operators)
            print(", ".join(f"{counts[kind]} {kind}" for kind in Served), file=sys.stderr)
        sys.stdout.flush()
    except BrokenPipeError:  # `ops | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
