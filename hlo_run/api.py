"""What `import hlo_run` offers beside `parse`: running modules, and making them from JAX functions and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hlo_run import target as targets
from hlo_run.backends.memory import check_memory
from hlo_run.commands.isolate_fusion import find_fusion, operands_in_run
from hlo_run.errors import UsageError
from hlo_run.execution.arguments import MODULE_SEED
from hlo_run.formats.jax_arguments import plain, plain_values
from hlo_run.formats.jax_callbacks import adopt_callbacks
from hlo_run.formats.jax_functions import lower_to_text
from hlo_run.formats.read import read_module
from hlo_run.hlo.arguments import ArgumentLike, fit_arguments
from hlo_run.hlo.feeds import given_feeds
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions, Options
from hlo_run.pipeline.executable_cache import compile_or_load
from hlo_run.platforms import INTERPRETER, choose_platform, open_backend
from hlo_run.reference.evaluate.evaluate import evaluate as evaluate_reference


def load(path: str, input_format: str = "") -> HloModule:
    """Return the module in a file: HLO text, or with the extra `xla` a proto, StableHLO or MHLO (by extension or format).

    Raises UsageError for a file that cannot be read, ParseError for one that is not valid.
    """
    return parse(read_module(path, input_format).text, path)


def evaluate(
    module: HloModule, *arguments: ArgumentLike, infeed: Sequence[ArgumentLike] = (), **keywords: ArgumentLike
) -> Literal:
    """Return what the numpy reference computes: an array, or a tuple of such, for one argument per entry parameter.

    Arrays must have the parameters' types and dimensions, numbers are converted. A module of `from_jax` also takes what its
    function takes, and any module trees of JAX whose leaves are one per parameter. `infeed` are the arrays that infeeds take,
    in order, tuples as their leaves. Raises UsageError where they do not fit, Unsupported for an instruction beyond the
    reference.
    """
    return _result(
        module, evaluate_reference(module, _values(module, arguments, keywords), feeds=given_feeds(map(plain, infeed)))
    )


def run(
    module: HloModule,
    *arguments: ArgumentLike,
    platform: str = "",
    target: str = "",
    infeed: Sequence[ArgumentLike] = (),
    **keywords: ArgumentLike,
) -> Literal:
    """Compile and run `module` as `hlo-run` does, and return the result; nothing is compared.

    `platform` is CUDA, Host (PTX on the CPU) or Interpreter; empty: CUDA if a device can be opened, else Host. `target` is
    the GPU to compile for, by default the device, or h100. Arguments and `infeed` are as in `evaluate`. The module stays as it
    is. Raises errors of the HloRunError family.
    """
    name = choose_platform(platform)
    feeds = given_feeds(map(plain, infeed))
    values = _values(module, arguments, keywords)
    if name == INTERPRETER:
        return _result(module, evaluate_reference(module, values, feeds=feeds))
    options = Options(platform=name, target=target)
    backend = open_backend(name, options)
    spec = backend.target if backend.target is not None and not target else targets.preset(target or targets.DEFAULT_TARGET)
    executable = compile_or_load(PassContext(spec, options.compile), wrap_bare_module(module.clone()))
    check_memory(executable)
    return _result(module, backend.run(executable, values, feeds=feeds))


def _values(module: HloModule, arguments: Sequence[ArgumentLike], keywords: Mapping[str, ArgumentLike]) -> list[Literal]:
    """Return one literal per parameter; raises UsageError."""
    if module.convention is not None:
        return fit_arguments(module, module.convention.values(module, arguments, keywords))
    if keywords:
        raise UsageError(f"'{module.name}' has no argument called '{next(iter(keywords))}'", hint="modules of from_jax have")
    return fit_arguments(module, plain_values(module, arguments))


def _result(module: HloModule, literal: Literal) -> Literal:
    return literal if module.convention is None else module.convention.result(module, literal)


def isolate(module: HloModule, name: str, target: str = "") -> HloModule:
    """Return the fusion called `name` as a module whose parameters are the fusion's operands; `module` stays as it is.

    Fusions are looked up in the module as executed, by their own name or their kernel's. Raises UsageError for another name.
    """
    return isolate_instruction(_find_fusion(module, name, target))


def isolate_in_run(module: HloModule, name: str, *arguments: ArgumentLike, target: str = "") -> tuple[HloModule, list[Literal]]:
    """Return what `isolate` returns, and the operands that the fusion has where `module` runs on `arguments`.

    In a loop they are those of the first iteration. Raises Unsupported where the reference cannot evaluate what leads to
    the fusion.
    """
    fusion = _find_fusion(module, name, target)
    return isolate_instruction(fusion), operands_in_run(fusion, _values(module, arguments, {}), MODULE_SEED)


def _find_fusion(module: HloModule, name: str, target: str) -> HloInstruction:
    return find_fusion(module, name, targets.preset(target or targets.DEFAULT_TARGET), CompileOptions(target=target))


def from_jax(function: Any, *arguments: Any, jax_platform: str = "cpu", **keywords: Any) -> HloModule:
    """Return the module that JAX lowers `function` to for such arguments (arrays, or jax.ShapeDtypeStruct: values do not matter).

    Parameters are the arrays and numbers in the arguments, in JAX's order, keys of random numbers as their words; those that
    `function` ignores stay, unless it is jitted already. All else in the arguments (functions, strings) is constant, and so are
    numbers beside such things in one argument (a model), those that `function` has to know while it is traced, and all for
    a `function` with a `lower` of its own, such as Equinox's `filter_jit`. `function` may also be traced, lowered, compiled or
    exported already. The result is the arrays in what `function` returns. `jax_platform` says for which platform JAX lowers
    (`cpu`, `cuda`, ..), which decides between plain HLO and a library's custom calls; the default makes the same module on
    every machine. Raises UsageError where jax is missing or `function` is nothing to lower; what `function` or JAX raises
    passes through.
    """
    lowered = lower_to_text(function, arguments, keywords, jax_platform)
    module = parse(lowered.text, lowered.name)
    module.convention = lowered.call
    adopt_callbacks(module, lowered.call.callbacks)
    return module
