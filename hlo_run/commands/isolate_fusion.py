"""`--isolate_fusion`: turns one fusion of the optimised module into a module, with the operands that it has in a run."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import replace

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.commands.target_choice import choose_target
from hlo_run.commands.task import Task
from hlo_run.errors import DeviceError, Unsupported, UsageError
from hlo_run.execution.arguments import MODULE_SEED, Arguments
from hlo_run.execution.output_files import write_artefact
from hlo_run.hlo.edit import DETACHED, InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.isolate import copy_computation, isolate_instruction
from hlo_run.hlo.names import kernel_name
from hlo_run.hlo.printer import FULL
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import CompileOptions
from hlo_run.options.command_line import hlo_run_command, options_alone
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.evaluate.evaluate import evaluate
from hlo_run.reference.literal_files import write_values
from hlo_run.target import TargetSpec


def find_fusion(module: HloModule, name: str, target: TargetSpec, options: CompileOptions) -> HloInstruction:
    """Return the fusion called `name`, or with a kernel called `name`, of a copy of `module` that the HLO rows optimised.

    Raises UsageError if no fusion has that name.
    """
    from hlo_run.pipeline.compile import optimize  # imports passes

    executed = module.clone()
    optimize(PassContext(target, options), executed)
    computations = executed_computations(executed)
    fusions = {i.name: i for c in computations for i in c.instructions if i.opcode == "fusion"}
    wanted = name.removeprefix("%")
    by_kernel = {kernel_name(fusion): found for fusion, found in reversed(fusions.items())}
    found = fusions.get(wanted) or by_kernel.get(wanted)
    if found is not None:
        return found
    other = next((i for i in executed.instructions if i.name == wanted), None)
    if other is not None:
        raise UsageError(f"%{wanted} is not a fusion but a {other.opcode}", other.where, _hint(wanted, list(fusions)))
    raise UsageError(f"no fusion of '{module.name}' is called '{wanted}'", hint=_hint(wanted, list(fusions)))


def _hint(name: str, fusions: Sequence[str]) -> str:
    if not fusions:
        return "the optimised module has no fusion; --stage=hlo prints it"
    close = difflib.get_close_matches(name, fusions, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"the fusions are {', '.join(fusions[:20])}{', ..' if len(fusions) > 20 else ''}"


def operands_in_run(fusion: HloInstruction, arguments: Sequence[Literal], seed: int) -> list[Literal]:
    """Return the operands of `fusion`, a result of `find_fusion`, when its module runs on `arguments`, by the reference.

    In the body of a loop they are those of the first iteration. A branch is evaluated whether the run takes it or not. Raises
    Unsupported or DeviceError where the reference cannot evaluate the operands.
    """
    assert fusion.parent is not None
    module = fusion.parent.module
    assert module is not None
    copy = module.clone()
    copy.schedule = None
    place = module.computations.index(fusion.parent)
    computation, instruction = copy.computations[place], fusion.parent.instructions.index(fusion)
    _return_operands(copy, computation, computation.instructions[instruction])
    values = evaluate(copy, arguments, seed=seed)
    assert isinstance(values, tuple)
    return list(values)


def _return_operands(module: HloModule, computation: HloComputation, fusion: HloInstruction) -> None:
    """Give `module` a new entry that returns the distinct operands of an instruction of `computation` as a tuple."""
    wanted = list(dict.fromkeys(fusion.operands))
    while True:
        # A copy, since the path to the fusion may also call the computation itself.
        copy, copies = copy_computation(computation, lambda callee: callee)
        is_entry = computation.is_entry
        module.add_computation(copy, is_entry=is_entry)
        operands = [copies[instruction] for instruction in wanted]
        shape = Shape.make_tuple(tuple(operand.shape for operand in operands))
        copy.root = InstructionMaker(copy).add("tuple", shape, operands, name="operands")
        if is_entry:
            return
        caller = computation.callers[0]
        assert caller.parent is not None
        arguments = _operands_of(caller, computation)
        computation = caller.parent
        call = DETACHED.add("call", shape, arguments, {"to_apply": (copy,)}, name="leads_to")
        computation.add(call)
        wanted = [
            InstructionMaker(computation).add("get-tuple-element", part, [call], name="element", index=number)
            for number, part in enumerate(shape.tuple_shapes)
        ]


def _operands_of(caller: HloInstruction, called: HloComputation) -> list[HloInstruction]:
    """Return the arguments of the first call of a computation by a call, loop or conditional."""
    if caller.opcode != "conditional":
        return list(caller.operands)
    branches = [computation for group in caller.called.values() for computation in group]
    return [caller.operands[1 + branches.index(called)]]


def write_isolated(folder: str, name: str, module: HloModule, values: Sequence[Literal]) -> str:
    """Write the module and its arguments to `name.hlo` and `name.npz` in `folder`; return their path without the extension.

    Raises UsageError if a file cannot be written.
    """
    path = os.path.join(folder, re.sub(r"[^A-Za-z0-9_.\-]", "_", name))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be created: {os.strerror(error.errno or 0)}") from None
    write_artefact(f"{path}.hlo", module.to_string(FULL))
    parameters = module.entry.parameters
    write_values(f"{path}.npz", {"arg": [(value, p.shape) for value, p in zip(values, parameters, strict=True)]})
    return os.path.normpath(path)


def isolate(task: Task, module: HloModule) -> HloModule:
    """Return the fusion of the flag as a module, and write it to a file together with its operands in this run.

    Changes the task to one of the new module, for one device: `given` are the operands, random ones if the run is on several
    devices, and the options for the old arguments are cleared.
    """
    options = task.options
    fusion = find_fusion(module, options.isolate_fusion, choose_target(options), options.compile)
    alone = isolate_instruction(fusion)
    task.options = replace(options, inputs="", num_replicas=0, num_partitions=0)
    if options.stage:
        return alone
    arguments = Arguments(replace(options, save_inputs=""), module, task.given, task.place, task.given_from)
    try:
        if arguments.grid.size > 1:
            raise Unsupported(f"they differ between the devices of {arguments.grid}")
        values, source = arguments.next(1)
        task.given = operands_in_run(fusion, values, MODULE_SEED)
        task.given_from = f"the run of {module.name} with {source}"
    except (Unsupported, DeviceError) as error:
        task.given = make_fake_arguments(alone, options.seed)
        task.given_from = f"seed {options.seed}"
        task.console.err(
            f"%{fusion.name} gets random operands, because the reference cannot compute those of the run: {error.message}"
        )
    path = write_isolated(task.folder, f"{module.name}.{fusion.name}", alone, task.given)
    command = hlo_run_command(options_alone(options, path), f"{path}.hlo")
    task.console.err(f"%{fusion.name} is isolated: {command}")
    return alone
