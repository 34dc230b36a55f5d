"""`HloBuilder`: a method per opcode, from one file per family of opcodes."""

from __future__ import annotations

from hlo_run.builder.collectives import CollectiveMethods
from hlo_run.builder.control import ControlMethods
from hlo_run.builder.linalg import LinalgMethods
from hlo_run.builder.shaping import ShapingMethods
from hlo_run.builder.special import SpecialMethods


class HloBuilder(SpecialMethods, ShapingMethods, LinalgMethods, ControlMethods, CollectiveMethods):
    """Builds a module instruction by instruction, as XLA's XlaBuilder does.

        builder = HloBuilder("scaled_sum")
        x = builder.parameter(0, "f32[3,4]")
        total = builder.reduce(x * 2.0, builder.constant(0.0), dimensions=[1], to_apply="add")
        module = builder.build(total)

    A method has the opcode's name with underscores; `and_`, `or_`, `not_` and `while_` avoid Python's keywords. Methods
    return an `HloValue`, whose shape is inferred at once. They raise ParseError where the same instruction in text would;
    the error's location is the line of the Python program.
    """
