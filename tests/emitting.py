"""Emits fusions written as HLO text, and runs the emitted IR against the reference."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from xla_gpu_interpreter import Interpreter

from hlo_run.analysis.buffers.in_place import in_place_operands
from hlo_run.analysis.tiling.analyze_fusion import analyze
from hlo_run.analysis.tiling.fusion_analysis import FusionAnalysis
from hlo_run.codegen.emitters.emit import EmittedKernel, EntryArgument, emit_kernel
from hlo_run.dialects.printer import print_module
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.text.parser import parse_module
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.ops.infer import infer_module
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.compare.agreement import disagreements
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.values import Value
from hlo_run.target import TargetSpec, preset

# Relative to the largest expected magnitude too, as design §6 says.
_BOUNDS = {"f64": 1e-9, "f32": 2e-4, "f16": 2e-2, "bf16": 6e-2}


def _spec(target: str | TargetSpec) -> TargetSpec:
    return preset(target) if isinstance(target, str) else target


def read_fusion(text: str) -> tuple[HloModule, HloInstruction]:
    """Return the module of a text (a bare computation becomes a fusion), and its entry's first fusion."""
    module = parse_module(text)
    wrap_bare_module(module)
    infer_module(module)
    return module, next(i for i in module.entry.instructions if i.opcode == "fusion")


def fusion_analysis(text: str, target: str | TargetSpec = "h100") -> FusionAnalysis:
    return analyze(read_fusion(text)[1], _spec(target))


@dataclass(frozen=True)
class Emitted:
    """A fusion, and the kernel of this name that is emitted for it when a test first asks."""

    module: HloModule
    fusion: HloInstruction
    target: TargetSpec
    name: str

    @cached_property
    def kernel(self) -> EmittedKernel:
        """The kernel, whose IR verifies."""
        fusion = self.fusion
        operands = [shape for operand in fusion.operands for _, shape in operand.shape.leaves()]
        results = [shape for _, shape in fusion.shape.leaves()]
        arguments = [EntryArgument(n, 16, shape.size_bytes, True) for n, shape in enumerate(operands)]
        changed = in_place_operands(fusion)
        arguments += [
            EntryArgument(changed.get(n, len(operands) + n), 256, shape.size_bytes, False) for n, shape in enumerate(results)
        ]
        kernel = emit_kernel(fusion, self.name, self.target, arguments)
        kernel.module.verify()
        return kernel

    @property
    def text(self) -> str:
        return print_module(self.kernel.module)

    @property
    def located_text(self) -> str:
        return print_module(self.kernel.module, print_locations=True)


def emit(text: str, target: str | TargetSpec = "h100", name: str = "kernel") -> Emitted:
    """Emit the fusion as a kernel of this name; the IR verifies."""
    emitted = Emitted(*read_fusion(text), _spec(target), name)
    _ = emitted.kernel
    return emitted


def run(text: str, *arguments: Any, target: str | TargetSpec = "h100") -> Emitted:
    """Emit and run the fusion on the arguments (random ones if none are given); hold the results against the reference."""
    emitted = emit(text, target)
    module, fusion = emitted.module, emitted.fusion
    given: tuple[Any, ...] = arguments or tuple(make_fake_arguments(module, 7))
    values: list[np.ndarray[Any, Any]] = [np.asarray(value) for value in given]
    expected = _leaves(evaluate(module, values))
    shapes = [shape for _, shape in fusion.shape.leaves()]
    numbers = [operand.parameter_number for operand in fusion.operands]
    inputs = [_as_ir(values[number]) for number in numbers]
    kernel = emitted.kernel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow and NaN are part of the game
        outputs = [(shape.dims, _as_ir(np.zeros((), shape.dtype.numpy)).dtype) for shape in shapes]
        results = Interpreter(kernel.module, kernel.launch).run("kernel", inputs, outputs)
    for result, want, shape in zip(results, expected, shapes, strict=True):
        got = result.astype(bool) if shape.element_type == "pred" else result.view(shape.dtype.numpy)
        comparison = compare(want, got, shape, _error_spec(want, shape))
        assert comparison.ok, f"{comparison.report()}\n{emitted.text}"
    return emitted


def run_on_host(text: str, *arguments: Any, target: str | TargetSpec = "h100") -> Emitted:
    """Emit the fusion, compile its module to PTX and run that on Host with all checks; hold it against the reference."""
    emitted = Emitted(*read_fusion(text), _spec(target), "kernel")
    values: list[Value] = list(arguments) or make_fake_arguments(emitted.module, 7)
    expected = evaluate(emitted.module, values)
    actual = results_on_host(emitted.module, values, target, Options(host_check="all"))
    for index, comparison in disagreements(expected, actual, emitted.module.entry.root.shape):
        raise AssertionError(f"result {list(index)}: {comparison.report()}\n{emitted.text}")
    return emitted


def results_on_host(module: HloModule, values: list[Value], target: str | TargetSpec, options: Options) -> Value:
    """Return what the module's kernels leave on Host."""
    executable = compile_module(PassContext(_spec(target), options, locates=bool(options.host_check)), module.clone())
    return open_backend("Host", options).run(executable, values)


def ptx_of(text: str, target: str | TargetSpec = "h100") -> str:
    """Return the PTX of the text's only kernel."""
    module, _ = read_fusion(text)
    (kernel,) = compile_module(PassContext(_spec(target), Options()), module).kernels
    return kernel.ptx


def _leaves(value: Value) -> list[np.ndarray[Any, Any]]:
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def _as_ir(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array with the types of the IR: signless integers, PRED as i8."""
    if value.dtype == np.bool_:
        return value.astype(np.int8)
    return value.view(f"int{8 * value.dtype.itemsize}") if value.dtype.kind == "u" else value


def _error_spec(want: Any, shape: Shape) -> ErrorSpec:
    bound = _BOUNDS.get(shape.element_type, 0.0)
    if not bound:
        return ErrorSpec(0, 0)
    wide = np.abs(np.asarray(want).astype(np.float64))
    return ErrorSpec(bound * float(np.max(wide[np.isfinite(wide)], initial=0)), bound)
