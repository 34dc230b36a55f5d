"""Finds the function of the host that launches kernels, and fixes the sizes of its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from xdsl.dialects import func
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    ComplexType,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    MemRefType,
    ModuleOp,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.artifact.structure import launch_problem
from hlo_run.dialects.gpu_kernel import GpuFuncOp, GpuModuleOp
from hlo_run.dialects.gpu_launch import LaunchFuncOp, LaunchOp
from hlo_run.dialects.parse import PlacedModule
from hlo_run.dialects.types import is_integer, is_memref
from hlo_run.errors import ParseError, Unsupported, UsageError

DEFAULT_SIZE, DEFAULT_SIDE = 1024, 64
"""A dynamic size without `--sizes`, and one if a memref has several dimensions."""
_MAIN = "main"
_FLOATS: dict[type[Attribute], str] = {Float16Type: "f16", BFloat16Type: "bf16", Float32Type: "f32", Float64Type: "f64"}
_INTEGERS = {1: "pred", 8: "s8", 16: "s16", 32: "s32", 64: "s64"}
_SIZES = re.compile(r"(?:%?(?P<name>[\w$.-]+)=)?(?P<sizes>-?[\d.e+-]+(?:x\d+)*)")


class Argument(Struct, frozen=True):
    """An argument of the program.

    `dtype` is the HLO name of its type, `dims` are the sizes of a memref. `value` is set for a number that is fixed before the
    run: a size, or another scalar that `--sizes` names. The others get their values for each run.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    is_memref: bool
    value: float | None = None


class Program(Struct, frozen=True):
    """The program to run: a function of the host, or, in a module without one, a launch of its only kernel."""

    name: str
    entry: func.FuncOp | GpuFuncOp
    arguments: tuple[Argument, ...]
    launch: LaunchDimensions | None = None

    @property
    def given(self) -> tuple[Argument, ...]:
        """The arguments that get values for each run."""
        return tuple(argument for argument in self.arguments if argument.value is None)


def dtype_name(type_: Attribute) -> str:
    """Return the HLO name of the type of a scalar or an element; "" for others."""
    if isinstance(type_, IndexType):
        return "s64"
    if is_integer(type_):
        return _INTEGERS.get(type_.width.data, "")
    return _FLOATS.get(type(type_), "") if isa(type_, AnyFloat) and not isinstance(type_, ComplexType) else ""


def parse_sizes(text: str) -> tuple[dict[str, tuple[float, ...]], float | None]:
    """Return the numbers by name of `n=1024,x=64x32`, and the number without a name. Raises UsageError."""
    named: dict[str, tuple[float, ...]] = {}
    default: float | None = None
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _SIZES.fullmatch(part)
        try:
            numbers = tuple(_number(number) for number in found["sizes"].split("x")) if found is not None else ()
        except ValueError:
            numbers = ()
        if found is None or not numbers:
            raise UsageError(f"--sizes: '{part}' is not a size", hint="--sizes=n=1024,x=64x32, or one number for all")
        if found["name"] is not None:
            named[found["name"]] = numbers
        elif len(numbers) == 1 and default is None:
            default = numbers[0]
        else:
            raise UsageError(f"--sizes: '{part}' names no argument", hint="--sizes=NAME=VALUE")
    return named, default


def _number(text: str) -> float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def parse_launch(text: str) -> LaunchDimensions:
    """Return the launch dimensions of `16x1x1,128x1x1`, a grid and a block, where sizes of 1 may be left out."""
    found = re.fullmatch(r"(\d+(?:x\d+){0,2}),(\d+(?:x\d+){0,2})", text.strip())
    if found is None:
        raise UsageError(f"--kernel_launch={text} is not a grid and a block", hint="--kernel_launch=16x1x1,128x1x1")
    grid, block = ([*map(int, sizes.split("x")), 1, 1][:3] for sizes in found.groups())
    return LaunchDimensions((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]))


def plan_program(placed: PlacedModule, name: str, sizes: str, launch: str) -> Program:
    """Return the program of a module. `sizes` and `launch` are the texts of `--sizes` and `--kernel_launch`.

    Raises ParseError for a module that launches nothing, Unsupported for arguments of other types, UsageError for names that do
    not exist.
    """
    entry = _entry(placed)
    named, default = parse_sizes(sizes)
    values = [*entry.body.blocks[0].args[: len(entry.function_type.inputs)]]
    known = _names(values)
    unknown = [each for each in named if each not in known]
    if unknown:
        raise UsageError(f"--sizes: @{_symbol(entry)} has no argument '{unknown[0]}'", hint=f"it has {', '.join(known)}")
    if default is None:
        several = any(is_memref(value.type) and len(value.type.get_shape()) > 1 and _is_dynamic(value.type) for value in values)
        default = DEFAULT_SIDE if several else DEFAULT_SIZE
    arguments = tuple(
        _argument(placed, entry, value, each, named.get(each), int(default)) for value, each in zip(values, known, strict=True)
    )
    if isinstance(entry, func.FuncOp):
        if launch:
            raise UsageError("--kernel_launch: the module launches its kernels itself", hint="leave it out")
        return Program(name, entry, arguments)
    if not launch:
        hint = "--kernel_launch=8x1x1,128x1x1 launches 8 blocks of 128 threads"
        raise UsageError(f"'{placed.file}' has the kernel @{_symbol(entry)} and no function that launches it", hint=hint)
    dimensions = parse_launch(launch)
    if problem := launch_problem(dimensions.grid, dimensions.block):
        raise UsageError(f"--kernel_launch: {problem}")
    return Program(name, entry, arguments, dimensions)


def _is_dynamic(type_: MemRefType) -> bool:
    return any(size < 0 for size in type_.get_shape())


def _symbol(entry: func.FuncOp | GpuFuncOp) -> str:
    return entry.sym_name.data


def _names(values: Sequence[SSAValue]) -> list[str]:
    return [value.name_hint or f"arg{number}" for number, value in enumerate(values)]


def _argument(
    placed: PlacedModule,
    entry: Operation,
    value: SSAValue,
    name: str,
    given: tuple[float, ...] | None,
    default: int,
) -> Argument:
    type_ = value.type
    if is_memref(type_):
        dtype, shape = dtype_name(type_.element_type), tuple(type_.get_shape())
        if dtype:
            return Argument(name, dtype, _dims(name, shape, given, default), is_memref=True)
    elif dtype := dtype_name(type_):
        if given is not None and len(given) != 1:
            raise UsageError(f"--sizes: '{name}' is one number, not {len(given)}")
        fixed: float | None = given[0] if given is not None else None
        if isinstance(type_, IndexType) and fixed is None:
            fixed = default
        return Argument(name, dtype, (), is_memref=False, value=fixed)
    reason = f"argument '{name}' of type {type_}"
    hint = "arguments are index, integers, floats, and memrefs of them"
    raise Unsupported(reason, placed.where(entry), hint=hint)


def _dims(name: str, shape: tuple[int, ...], given: tuple[float, ...] | None, default: int) -> tuple[int, ...]:
    if given is None:
        return tuple(default if size < 0 else size for size in shape)
    dims = tuple(map(int, given))
    if len(dims) != len(shape) or any(0 <= has != size for has, size in zip(shape, dims, strict=True)):
        text = "x".join("?" if size < 0 else str(size) for size in shape)
        raise UsageError(f"--sizes: '{name}' has the sizes {text}, not {'x'.join(map(str, dims))}")
    return dims


def _entry(placed: PlacedModule) -> func.FuncOp | GpuFuncOp:
    """Return the function to run: @main, else the first that launches and that no other calls, else the only kernel."""
    module = placed.module
    functions = [op for op in module.body.block.ops if isinstance(op, func.FuncOp) and op.body.blocks]
    launching = [each for each in functions if any(isinstance(op, LaunchOp | LaunchFuncOp) for op in each.walk())]
    called = {op.callee.string_value() for each in functions for op in each.walk() if isinstance(op, func.CallOp)}
    main = [each for each in functions if _symbol(each) == _MAIN]
    if main and launching:
        return main[0]
    if launching:
        return next((each for each in launching if _symbol(each) not in called), launching[0])
    kernels = [op for op in module.walk() if isinstance(op, GpuFuncOp) and op.is_kernel]
    if len(kernels) == 1:
        return kernels[0]
    what = f"{len(kernels)} kernels and no function that launches them" if kernels else "no gpu.launch and no kernel"
    raise ParseError(f"the module has {what}", placed.where(_first(module)))


def _first(module: ModuleOp) -> Operation | None:
    return next((op for op in module.walk() if isinstance(op, GpuModuleOp | func.FuncOp)), module)
