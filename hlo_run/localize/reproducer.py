"""Writes a thunk as files that run alone: its instruction as a module, its operands, replacements of its kernel, the command."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import Struct

from hlo_run.artifact import Executable
from hlo_run.errors import UsageError
from hlo_run.execution.output_files import write_artefact
from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.names import kernel_name
from hlo_run.hlo.printer import FULL
from hlo_run.hlo.values.attribute_values import RawText
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import Options
from hlo_run.options.command_line import AROUND_A_RUN, OF_ARGUMENTS, OF_READING, REPLACING_FILES, acting, flag_words, without
from hlo_run.options.effects import NOT_REPLAYED
from hlo_run.pass_support.replacements import Replacements, file_name
from hlo_run.reference.literal_files import write_values
from hlo_run.runtime.buffers import BufferAssignment

_MODULE_IN_HEADER = re.compile(r"; module: .*")
# Options that the reproducer sets itself, or that have no meaning for a module of one instruction on one device.
_NOT_OF_IT = frozenset(
    (*AROUND_A_RUN, *OF_ARGUMENTS, *OF_READING, *NOT_REPLAYED, *REPLACING_FILES, "output", "output_machine_code")
) - {"host_check"}


class Reproducer(Struct, frozen=True):
    """A module of one instruction, the values of its parameters, and the texts that replace its kernels by file name.

    `flags` maps a flag to the file that it names.
    """

    name: str
    module: HloModule
    kernels: tuple[str, ...]
    values: list[Literal]
    texts: dict[str, str]
    flags: dict[str, str]


def make_reproducer(
    instruction: HloInstruction,
    kernels: Sequence[str],
    operands: Sequence[Literal],
    buffers: BufferAssignment,
    replacements: Replacements,
    scheduled: bool,
    leaves: Sequence[tuple[int, ...]] = (),
) -> Reproducer:
    """Return the reproducer of an instruction of an optimised module with `buffers`, on one literal per operand.

    With `scheduled` the module counts as optimised, so that no HLO pass changes it. A result that shares the memory of an
    operand in `buffers` still does, since kernels depend on it. `leaves` are the shape indices of the results that are written:
    the others, such as workspaces, are no results of the reproducer.
    """
    alone = isolate_instruction(instruction)
    all_leaves = [path for path, _ in instruction.shape.leaves()]
    is_whole = not leaves or list(leaves) == all_leaves
    if not is_whole:
        _keep_results(alone, leaves)
    elif updated := _updated_in_place(instruction, buffers):
        alone.attrs["input_output_alias"] = RawText("{ " + ", ".join(updated) + " }")
    if len(kernels) == 1 and kernel_name(instruction.name) != kernels[0]:
        # Equal fusions share a kernel, which has the name of the first.
        next(i for i in alone.entry.instructions if i.name == instruction.name).name = kernels[0]
    if scheduled:
        alone.schedule = {alone.entry: alone.entry.post_order()}
        alone.attrs["is_scheduled"] = True
    pairs = dict(zip(instruction.operands, operands, strict=True))
    texts: dict[str, str] = {}
    flags: dict[str, str] = {}
    for flag, ending, found in (
        ("kernel_ir_file", "mlir", replacements.ir),
        ("xla_gpu_llvm_ir_file", "ll", replacements.llvm),
        ("xla_gpu_ptx_file", "ptx", replacements.ptx),
    ):
        for kernel in kernels:
            if kernel in found:
                text = found[kernel].text
                if flag == "kernel_ir_file":
                    text = _MODULE_IN_HEADER.sub(f"; module: {file_name(alone.name)}", text, count=1)
                path = f"{kernel}.{ending}"
                texts[path] = text
                flags[flag] = f"{flags[flag]},{path}" if flag in flags else path
    return Reproducer(file_name(instruction.name), alone, tuple(kernels), list(pairs.values()), texts, flags)


def _keep_results(alone: HloModule, leaves: Sequence[tuple[int, ...]]) -> None:
    """Make the parts of the root at these shape indices the results of a module."""
    entry = alone.entry
    parts: list[HloInstruction] = []
    for path in leaves:
        part = entry.root
        for number in path:
            shape = part.shape.tuple_shapes[number]
            part = InstructionMaker(entry).add("get-tuple-element", shape, [part], name=f"part.{len(parts)}", index=number)
        parts.append(part)
    if len(parts) == 1:
        entry.root = parts[0]
        return
    shape = Shape.make_tuple(tuple(part.shape for part in parts))
    entry.root = InstructionMaker(entry).add("tuple", shape, parts, name="results")


def _updated_in_place(instruction: HloInstruction, buffers: BufferAssignment) -> list[str]:
    """Return the entries of `input_output_alias` for the results that share the memory of an operand of their shape."""
    places = {
        buffers.slice(operand): (number, operand.shape)
        for number, operand in enumerate(dict.fromkeys(instruction.operands))
        if operand.shape.is_array
    }
    found: list[str] = []
    for index, leaf in instruction.shape.leaves():
        number, shape = places.get(buffers.slice(instruction, index), (0, None)) if leaf.is_array else (0, None)
        if shape == leaf:
            found.append(f"{{{','.join(map(str, index))}}}: ({number}, {{}}, must-alias)")
    return found


def write_reproducer(folder: str, given: Reproducer, executable: Executable, options: Options, what: str) -> str:
    """Write the files into `folder`, which is made if needed, and return the command that runs them there.

    `what` is the text of README. Raises UsageError if a file cannot be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be created: {os.strerror(error.errno or 0)}") from None

    def write(name: str, text: str) -> None:
        write_artefact(os.path.join(folder, name), text)

    write(f"{given.name}.hlo", given.module.to_string(FULL))
    parameters = given.module.entry.parameters
    path = os.path.join(folder, f"{given.name}.npz")
    write_values(path, {"arg": [(value, p.shape) for value, p in zip(given.values, parameters, strict=True)]})
    for name, text in given.texts.items():
        write(name, text)
    ran = [f"{kernel}.ptx" for kernel in given.kernels if f"{kernel}.ptx" not in given.texts]
    for name in ran:
        write(name, executable.kernel(name.removesuffix(".ptx")).ptx)
    files = [f"--{flag}={name}" for flag, name in given.flags.items()]
    file = f"{given.name}.hlo"
    own = acting(replace(without(options, _NOT_OF_IT), platform="Host"), [file])
    command = shlex.join(["hlo-run", *flag_words(own, folder), f"--inputs={given.name}.npz", *files, file])
    kept = f"\nThe PTX that ran is in {', '.join(ran)}; --xla_gpu_ptx_file={','.join(ran)} runs it again.\n" if ran else ""
    write("README", f"{what}\nRun it in this folder (or run cmd):\n\n    {command}\n{kept}")
    write("cmd", f'#!/bin/sh\ncd "$(dirname "$0")" && exec {command}\n')
    return command


def smallest_that_differs(make: Callable[[bool], Reproducer], differs: Callable[[Reproducer], bool]) -> tuple[Reproducer, bool]:
    """Return a reproducer and whether it shows the error: the one that no HLO pass changes, else the other one if it does."""
    first = make(True)
    if differs(first):
        return first, True
    second = make(False)
    return (second, True) if differs(second) else (first, False)
