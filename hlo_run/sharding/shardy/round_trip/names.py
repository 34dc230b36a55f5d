"""Names, origins and order of instructions after XLA's way through StableHLO and back.

    %mul.7 = f32[8] multiply(x, y)    =>   %mul.0 = f32[8] multiply(x, y), metadata={op_name="mul.7"}

The origin of an instruction is its `op_name`, or its name if it has none; constants lose theirs. Its new name is the last part
of the origin and a number. XLA counts twice, once as it makes the instructions in the order of StableHLO, once as it completes
a computation, and keeps a number that the module does not have yet. It makes an element of every result and argument, used or
not, so those are counted too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hlo_run.hlo.attributes.stack_frames import StackFrame, StackFrames
from hlo_run.hlo.call_order import CallOrder
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.names import NameUniquer
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.records import replace

_BODY = "xla.sdy.inlinable_manual_computation_body"
_FUNCTION_CALLS = ("call", "custom-call")
# StableHLO passes them several values; their tuple has their name.
_TAKE_TUPLES = ("while", "conditional", "opt-barrier")


def write_origins(module: HloModule) -> None:
    """Give each instruction an `op_name`: its name, if it has none."""
    for instruction in module.instructions:
        metadata = instruction.metadata
        if not isinstance(metadata, OpMetadata):
            instruction.attrs["metadata"] = OpMetadata(op_name=instruction.name)
        elif not metadata.op_name:
            instruction.attrs["metadata"] = replace(metadata, op_name=instruction.name)


def rename(module: HloModule, changing: Mapping[HloInstruction, int]) -> None:
    """Name all computations and instructions in place and put them into the order in which XLA makes them.

    The names differ from those that the module has given before.
    `changing` has the number of results of each loop: the values that it does not change come after them and are no results.
    """
    names = _Names(changing, module.stack_frames)
    names.build(module.entry, "main")
    if names.frames is not None:
        module.attrs["stack_frames"] = names.frames
    module.computations.sort(key={built[0]: place for place, built in enumerate(names.built)}.__getitem__)
    module.call_order = CallOrder()
    for computation, wanted, instructions in names.built:
        module.call_order.add(computation)
        computation.name = module.unique_computation_name(wanted)
        for instruction, name in instructions:
            unique = module.unique_instruction_name(name)
            if instruction is not None:
                instruction.name = unique
        places = {instruction: place for place, (instruction, _) in enumerate(instructions) if instruction is not None}
        computation.instructions.sort(key=places.__getitem__)
        for instruction in computation.instructions:
            instruction.order_users(computation.instructions)
        computation.root.touch()


class _Names:
    """Names what XLA's exporter makes; `built` has the computations as they are completed, with their instructions.

    `frames` are the stack frames of these instructions, in the order of their making. StableHLO keeps their beginnings only.
    """

    def __init__(self, changing: Mapping[HloInstruction, int], frames: StackFrames | None) -> None:
        self._changing = changing
        self._old_frames = frames
        self.frames = None if frames is None else StackFrames()
        self._unique = NameUniquer()
        self._functions: dict[str, int] = {}
        self._regions = 0
        self.built: list[tuple[HloComputation, str, list[tuple[HloInstruction | None, str]]]] = []

    def build(self, computation: HloComputation, name: str, origin: OpMetadata | None = None) -> None:
        """Name a computation after those that it calls; `name` is "" for a function. `origin` is that of a region's arguments."""
        is_region = origin is not None
        made: list[tuple[HloInstruction | None, str]] = []
        parameters = computation.parameters
        for parameter in parameters:
            if is_region:
                _give_origin(parameter, None if parameter.shape.is_tuple else OpMetadata(op_name=origin.op_name))
            else:
                self._renumber_frame(parameter)
            made.append((parameter, self._of(_argument_name(parameter) if is_region else _root(parameter))))
        elements: set[HloInstruction] = set()
        if is_region and len(parameters) == 1 and parameters[0].shape.is_tuple:
            made += self._elements(parameters[0], "get-tuple-element", elements)
        for instruction in computation.post_order():
            if instruction in elements or instruction.opcode == "parameter":
                continue
            self._call(instruction, origin)
            if instruction.opcode == "tuple":
                users = [user for user in instruction.users if user.opcode in _TAKE_TUPLES]
                _give_origin(instruction, _origin(users[0]) if users else None)
            elif instruction.opcode == "constant":
                _give_origin(instruction, None)
            self._renumber_frame(instruction)
            root = _root(instruction)
            made.append((instruction, self._of(root)))
            if instruction.shape.is_tuple and instruction.opcode != "tuple":
                made += self._elements(instruction, root, elements)
        named = [(instruction, self._unique.unique(old)) for instruction, old in made]
        self.built.append((computation, f"{name or self._function(computation)}.{len(self.built) + 1}", named))

    def _function(self, computation: HloComputation) -> str:
        """Return the name of the function that a computation becomes: other functions of the name get `_0`, `_1`, .."""
        name = re.sub(r"[^\w.]", "_", computation.name)
        name = _BODY if name.startswith(_BODY) else name
        number = self._functions[name] = self._functions.get(name, -1) + 1
        return f"{name}_{number - 1}" if number else name

    def _renumber_frame(self, instruction: HloInstruction) -> None:
        origin = _origin(instruction)
        if origin is None or not origin.stack_frame_id or self._old_frames is None or self.frames is None:
            return
        chain: list[StackFrame] = []
        number = origin.stack_frame_id
        while 0 < number <= len(self._old_frames.frames):
            chain.append(self._old_frames.frames[number - 1])
            number = chain[-1].parent
        for frame in reversed(chain):
            number = self.frames.number(replace(frame, end_line=frame.line, end_column=frame.column, parent=number))
        instruction.attrs["metadata"] = replace(origin, stack_frame_id=number)

    def _of(self, root: str) -> str:
        return self._unique.unique(f"{root}.0")

    def _elements(
        self, source: HloInstruction, root: str, elements: set[HloInstruction]
    ) -> list[tuple[HloInstruction | None, str]]:
        made: list[tuple[HloInstruction | None, str]] = []
        readers = {user.tuple_index: user for user in source.users if user.opcode == "get-tuple-element"}
        for number in range(self._changing.get(source, len(source.shape.tuple_shapes))):
            made.append((readers.get(number), self._of(root)))
        for reader in readers.values():
            _give_origin(reader, _origin(source) if source.opcode != "parameter" else None)
        elements.update(readers.values())
        return made

    def _call(self, instruction: HloInstruction, around: OpMetadata | None) -> None:
        """Build the computations that an instruction calls; `around` is the origin of the arguments around it."""
        called = instruction.called_computations
        if instruction.opcode == "while":
            called = (instruction.while_body, instruction.while_condition)
        for place, computation in enumerate(called, 1):
            if instruction.opcode in _FUNCTION_CALLS:
                self.build(computation, "")
                continue
            origin = _origin(instruction)
            if instruction.opcode == "conditional":
                # A branch has no arguments, so its parameter is the value that it captures.
                origin = _origin(instruction.operands[place]) or around
            number, self._regions = self._regions, self._regions + 1
            self.build(computation, f"region_{number}", origin or OpMetadata())


def _argument_name(parameter: HloInstruction) -> str:
    if not parameter.shape.is_tuple:
        return _root(parameter)
    return "arg_tuple" if parameter.shape.tuple_shapes else "arg_empty_tuple"


def _origin(instruction: HloInstruction) -> OpMetadata | None:
    metadata = instruction.metadata
    return metadata if isinstance(metadata, OpMetadata) else None


def _give_origin(instruction: HloInstruction, origin: OpMetadata | None) -> None:
    if origin is None:
        instruction.attrs.pop("metadata", None)
    else:
        instruction.attrs["metadata"] = origin


def _root(instruction: HloInstruction) -> str:
    """Return the part of the name before its number."""
    origin = _origin(instruction)
    if origin is None or not origin.op_name:
        return instruction.opcode
    last = origin.op_name.rpartition("/")[2]
    text, _, number = last.rpartition(".")
    return re.sub(r"[^\w\-]", "_", text if text and number.isdecimal() else last)
