"""The Python interface beside `parse`: load, run, evaluate and isolate modules, and lower JAX functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_run import target as targets
from hlo_run.analysis.cost.module_cost import cost_analysis as cost_analysis
from hlo_run.backends.grid import run_on_grid
from hlo_run.backends.interpreter import InterpreterBackend
from hlo_run.backends.memory import check_memory
from hlo_run.builder.core import HloValue
from hlo_run.commands.isolate_fusion import find_fusion, operands_in_run
from hlo_run.errors import UsageError
from hlo_run.execution.arguments import MODULE_SEED, Arguments
from hlo_run.execution.console import FilePosition
from hlo_run.formats.jax_arguments import plain, plain_values
from hlo_run.formats.jax_callbacks import adopt_callbacks
from hlo_run.formats.jax_functions import lower_to_text
from hlo_run.formats.read import read_module
from hlo_run.hlo.arguments import ArgumentLike, fit_arguments
from hlo_run.hlo.feeds import given_feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_between, isolate_instruction, needed_for
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import COLLECTIVE, DEVICE_ID, SIDE_EFFECT
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions, Options
from hlo_run.options.module_parts import split_name
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.executable_cache import compile_or_load
from hlo_run.pipeline.partition import partition
from hlo_run.pipeline.pass_pipeline import HloPassPipeline as HloPassPipeline
from hlo_run.platforms import INTERPRETER, choose_platform, open_backend
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.reference.evaluate.evaluate import evaluate as evaluate_reference

# These have no value of their own: devices, other modules or the state of a generator decide it.
VARYING = COLLECTIVE | DEVICE_ID | SIDE_EFFECT | opcode_set("rng")


def load(path: str, input_format: str = "") -> HloModule:
    """Return the module in a file: HLO text, or with the extra `xla` a proto, StableHLO or MHLO.

    `input_format` is a name of `--input_format`; empty: the format of the file's extension. Raises UsageError for a file that
    cannot be read, ParseError for an invalid module.
    """
    return parse(read_module(path, input_format).text, split_name(path)[0])


def evaluate(
    module: HloModule,
    *arguments: ArgumentLike,
    partitioned: bool = False,
    infeed: Sequence[ArgumentLike] = (),
    **keywords: ArgumentLike,
) -> Literal:
    """Return the result of the numpy reference, an array or a tuple, for one argument per entry parameter.

    Arrays must have the types and dimensions of the parameters; numbers are converted. A module of `from_jax` also takes the
    arguments of its function. Every module also takes JAX trees with one leaf per parameter. Several devices all get the same
    arguments, whole arrays where shardings divide them; the result is then a tuple with one result per device, but one result
    for a function of JAX on several partitions. `infeed` are the arrays for infeeds in order; a tuple is the list of its leaves.

    Without `partitioned`, every device computes whole arrays outside of hand-written shards, and no pass runs: this is the
    result to compare others with. With it, the module is divided between its partitions first, as `run` does it: every device
    computes its tiles, and the result is made of them. Raises UsageError for arguments that do not fit, Unsupported for an
    instruction that the reference does not handle, and with `partitioned` for a sharding over other devices than the module's.
    """
    grid = DeviceGrid.of(module)
    values = _values(module, arguments, keywords) * grid.size
    if partitioned and grid.partitions > 1:
        module = module.clone()
        partition(PassContext(targets.preset(targets.DEFAULT_TARGET), CompileOptions()), module)
    return _of_devices(module, grid, InterpreterBackend(grid).run_module(module, values, feeds=given_feeds(map(plain, infeed))))


def run(
    module: HloModule,
    *arguments: ArgumentLike,
    platform: str = "",
    target: str = "",
    infeed: Sequence[ArgumentLike] = (),
    **keywords: ArgumentLike,
) -> Literal:
    """Compile and run `module` as `hlo-run` does, and return the result without a comparison. Does not change `module`.

    `platform` is CUDA, Host (PTX on the CPU) or Interpreter; empty: CUDA if a device can be opened, else Host. `target` is the
    GPU to compile for; empty: the platform's device, else h100. Arguments and `infeed` are as in `evaluate`. Raises errors of
    the HloRunError family.
    """
    name = choose_platform(platform)
    feeds = given_feeds(map(plain, infeed))
    values = _values(module, arguments, keywords)
    grid = DeviceGrid.of(module)
    if name == INTERPRETER:
        return _of_devices(module, grid, InterpreterBackend(grid).run_module(module, values * grid.size, feeds=feeds))
    options = Options(platform=name, target=target)
    backend = open_backend(name, options)
    spec = backend.target if backend.target is not None and not target else targets.preset(target or targets.DEFAULT_TARGET)
    executable = compile_or_load(PassContext(spec, options.compile), wrap_bare_module(module.clone()))
    check_memory(executable)
    return _of_devices(module, grid, run_on_grid(backend, executable, values * grid.size, grid, feeds=feeds))


def random_arguments(module: HloModule, seed: int = 1, xla_arguments: bool = False) -> list[Literal]:
    """Return the arguments that `hlo-run --seed` makes for the module's first run, also with `--xla_arguments`.

    Of several devices, all the lists in one, in the order of the devices. Raises Unsupported if the uses of a parameter conflict.
    """
    options = Options(seed=seed, xla_arguments=xla_arguments)
    return Arguments(options, module, [], FilePosition(0, 1)).next(1)[0]


def _values(module: HloModule, arguments: Sequence[ArgumentLike], keywords: Mapping[str, ArgumentLike]) -> list[Literal]:
    """Return one literal per parameter; raises UsageError."""
    if module.convention is not None:
        return fit_arguments(module, module.convention.values(module, arguments, keywords))
    if keywords:
        raise UsageError(
            f"'{module.name}' has no argument called '{next(iter(keywords))}'", hint="only modules of from_jax take keywords"
        )
    return fit_arguments(module, plain_values(module, arguments))


def _result(module: HloModule, literal: Literal) -> Literal:
    return literal if module.convention is None else module.convention.result(module, literal)


def _of_devices(module: HloModule, grid: DeviceGrid, literal: Literal) -> Literal:
    """Return the result of `module`: one for each device, or one for a JAX function, whose partitions all have it."""
    if grid.size == 1:
        return _result(module, literal)
    assert isinstance(literal, tuple), "one result per device"
    return _result(module, literal[0]) if module.convention is not None and grid.replicas == 1 else literal


def compute_constant(value: HloValue) -> Literal:
    """Compute `value` of a builder by the numpy reference. Raises UsageError if it depends on a parameter.

    XLA's `XlaBuilder::BuildConstantSubGraph` and `ComputeConstant`.
    """
    needed = needed_for(value.instruction, ())
    varying = next((i for i in needed if i.opcode == "parameter" or i.opcode in VARYING), None)
    if varying is not None:
        raise UsageError(f"'{value.name}' is not a constant: it depends on the {varying.opcode} '{varying.name}'")
    return evaluate_reference(isolate_between(value.instruction, (), value.name), [])


def isolate(module: HloModule, name: str, target: str = "") -> HloModule:
    """Return the fusion called `name` as a module whose parameters are the fusion's operands. Does not change `module`.

    `name` is a fusion of the optimised module, or the kernel of one. Raises UsageError if no fusion has that name.
    """
    return isolate_instruction(_find_fusion(module, name, target))


def isolate_in_run(module: HloModule, name: str, *arguments: ArgumentLike, target: str = "") -> tuple[HloModule, list[Literal]]:
    """Return the module of `isolate`, and the fusion's operands when `module` runs on `arguments`.

    In a loop they are those of the first iteration. Raises UsageError if no fusion has that name, Unsupported if the reference
    cannot evaluate the operands.
    """
    fusion = _find_fusion(module, name, target)
    return isolate_instruction(fusion), operands_in_run(fusion, _values(module, arguments, {}), MODULE_SEED)


def _find_fusion(module: HloModule, name: str, target: str) -> HloInstruction:
    return find_fusion(module, name, targets.preset(target or targets.DEFAULT_TARGET), CompileOptions(target=target))


def from_jax(function: object, *arguments: object, jax_platform: str = "cpu", **keywords: object) -> HloModule:
    """Return the module that JAX lowers `function` to. Only the shapes of the arguments matter (arrays, jax.ShapeDtypeStruct).

    The parameters are the arrays and numbers in the arguments, in JAX's order. A random key is the array of its words. Unused
    parameters are kept, unless `function` is already jitted. Other arguments (functions, strings) are constants. Numbers are
    constants too if they are in one argument with such a thing (a model), if `function` needs their values during tracing, or
    if `function` has its own `lower`, as Equinox's `filter_jit` has. `function` may also be a traced, lowered, compiled or
    exported JAX function. The module's result is the arrays that `function` returns.

    `jax_platform` is the platform that JAX lowers for (`cpu`, `cuda`, ..). It decides between plain HLO and a library's custom
    calls. The default gives the same module on every machine. Raises UsageError if jax is not installed or `function` cannot be
    lowered. Exceptions of `function` and of JAX pass through.
    """
    lowered = lower_to_text(function, arguments, keywords, jax_platform)
    module = parse(lowered.text, lowered.name)
    module.convention = lowered.call
    for header, count in zip(("replica_count", "num_partitions"), lowered.counts, strict=True):
        if count > 1:
            module.attrs[header] = count
    adopt_callbacks(module, lowered.call.callbacks)
    return module
