"""Make the schema list of a torch_npu release from its wheel, without importing it.

    pip download --no-deps torch_npu==2.9.0
    python -m ascend_sim.contract.read_wheel torch_npu-2.9.0-*.whl

Operators are declared to torch by schema text, which stands as a string in the shared libraries.
Names are those that the Python modules define at their top level, by reading their source.
"""

import ast
import hashlib
import re
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from ascend_sim.contract.schemas import DATA, parse_schema

_SCHEMA = re.compile(r"(?:(?:npu|atb|npu_custom_dist)::)?\w+(?:\.\w+)?\(.*\) -> .+")
_TYPE = re.compile(
    r"(Tensor(\([a-z]!?( -> \*)?\))?|int|SymInt|float|bool|str|Scalar|ScalarType|Device|Layout"
    r"|MemoryFormat|Generator|Stream|Dimname|Storage|__torch__[\w.]+)\??(\[\d*\]){0,2}(\([a-z]!\))?\??"
)
_STRING = re.compile(rb"[\x20-\x7e]{3,}")
# Registered from C++ function types, so that no schema text exists.
_UNSIGNED = (
    "print_npugraph_tensor",
    "save_npugraph_tensor",
    "set_op_timeout_ms",
    "super_kernel_scope_begin",
    "super_kernel_scope_end",
)
# Put into the package by C++ and by loops over C++ enumerations; each stands as a string of its
# own.
_FROM_C = [
    "Format",
    "ParallelStore",
    "atb",
    "bfloat16",
    "bool",
    "complex128",
    "complex32",
    "complex64",
    "float16",
    "float32",
    "float4_e1m2fn_x2",
    "float4_e2m1fn_x2",
    "float64",
    "float6_e2m3",
    "float6_e3m2",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "hifloat8",
    "int16",
    "int32",
    "int4",
    "int64",
    "int8",
    "string",
    "uint1",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
]
# The packages that programs name; torch.npu is torch_npu.npu.
_PACKAGES = ("npu", "contrib", "distributed", "optim", "profiler", "utils")


def read_operators(wheel: zipfile.ZipFile) -> tuple[list[str], list[str], list[str]]:
    """Find operator schemas in the wheel's libraries.

    Returns:
        Schemas with their namespace, sorted; `npu` operators that have no schema text; and names
        of the package that C++ puts there.
    """
    schemas: set[str] = set()
    unsigned: set[str] = set()
    from_c: set[str] = set()
    for member in wheel.namelist():
        if not member.endswith(".so"):
            continue
        namespace = "atb" if "atb" in PurePosixPath(member).name else "npu"
        for found in _STRING.finditer(wheel.read(member)):
            text = found.group().decode()
            if _SCHEMA.fullmatch(text) and _is_sound(text):
                schemas.add(_qualified(text, namespace))
            elif text in _FROM_C:
                from_c.add(text)
            else:
                unsigned.update(f"npu::{name}" for name in _UNSIGNED if name in text)
    return sorted(schemas), sorted(unsigned), sorted(from_c)


def read_names(wheel: zipfile.ZipFile) -> dict[str, list[str]]:
    """Map the wheel's public modules to the names at their top level, star imports resolved."""
    trees = {}
    for member in wheel.namelist():
        if member.startswith("torch_npu/") and member.endswith(".py"):
            trees[_module(member)] = ast.parse(wheel.read(member))
    public = [module for module in trees if _is_public(module)]
    names = {module: _names(module, trees, set()) for module in sorted(public)}
    for tree in trees.values():
        names["torch_npu"].update(_put_into_package(tree))
    return {module: sorted(found) for module, found in names.items()}


def write_list(wheel_path: Path, *, folder: Path = DATA) -> Path:
    """Write the list of one wheel into `folder`; returns its path."""
    version = wheel_path.name.split("-")[1]
    digest = hashlib.sha256(wheel_path.read_bytes()).hexdigest()
    with zipfile.ZipFile(wheel_path) as wheel:
        schemas, unsigned, from_c = read_operators(wheel)
        names = read_names(wheel)
    names["torch_npu"] = sorted({*names["torch_npu"], *from_c})
    lines = [
        f"# torch_npu {version}: operators and names, read out of the wheel without importing it.",
        f"# wheel {wheel_path.name}",
        f"# sha256 {digest}",
        "# made by: python -m ascend_sim.contract.read_wheel WHEEL",
        *(f"op {schema}" for schema in schemas),
        *(f"unsigned {name}" for name in unsigned),
        *(f"names {' '.join([module, *found])}" for module, found in names.items()),
    ]
    path = folder / f"torch_npu-{version}.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def main(argv: Sequence[str]) -> int:
    """Write the list of each wheel named on the command line."""
    if not argv:
        print("usage: python -m ascend_sim.contract.read_wheel WHEEL...", file=sys.stderr)
        return 2
    for name in argv:
        print(write_list(Path(name)))
    return 0


def _is_sound(text: str) -> bool:
    """Whether every type in `text` is one of torch's: compilers also leave fragments of strings."""
    try:
        schema = parse_schema(text)
    except ValueError:
        return False
    types = [argument.type for argument in schema.arguments] + [
        returned.split(" ")[0] for returned in schema.returns
    ]
    return all(_TYPE.fullmatch(kind) for kind in types)


def _qualified(text: str, namespace: str) -> str:
    if "classes.npu_custom_dist" in text:
        namespace = "npu_custom_dist"
    return text if "::" in text.partition("(")[0] else f"{namespace}::{text}"


def _module(member: str) -> str:
    return member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_public(module: str) -> bool:
    parts = module.split(".")[1:]
    return not parts or (parts[0] in _PACKAGES and not any(p.startswith("_") for p in parts))


def _names(module: str, trees: dict[str, ast.Module], seen: set[str]) -> set[str]:
    """Names bound at the top level of `module`, in conditionals too."""
    if module not in trees or module in seen:
        return set()
    seen.add(module)
    names = {m.rpartition(".")[2] for m in trees if m.rpartition(".")[0] == module}
    for node in _top_level(trees[module].body):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements)):
                names.update(str(e.value) for e in elements if isinstance(e, ast.Constant))
            case ast.Assign(targets=targets):
                names.update(t.id for t in targets if isinstance(t, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Import(names=aliases):
                names.update(a.asname or a.name.partition(".")[0] for a in aliases)
            case ast.ImportFrom(names=aliases):
                if aliases[0].name == "*":
                    names |= _names(_source(node, module, trees), trees, seen)
                else:
                    names.update(a.asname or a.name for a in aliases)
    return {name for name in names if not name.startswith("__")}


def _put_into_package(tree: ast.Module) -> Iterable[str]:
    """Names that a module sets on the package: `torch_npu.Format = Format`."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="torch_npu"), attr=name)]):
                yield name


def _top_level(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _top_level(handler.body)


def _source(node: ast.ImportFrom, module: str, trees: dict[str, ast.Module]) -> str:
    if not node.level:
        return node.module or ""
    package = any(name.startswith(f"{module}.") for name in trees)
    base = module.split(".")[: None if package and node.level == 1 else -node.level + package]
    return ".".join([*base, node.module or ""]).rstrip(".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
