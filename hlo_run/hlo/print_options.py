"""Options of the HLO printer, and XLA's predefined sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from hlo_run.records import replace


class PrintOptions(Struct, frozen=True):
    """Options of the printer; the defaults are XLA's `HloPrintOptions::Default`.

    `operand_index_interval` N prints `/*index=N*/` before every Nth operand, 0 never. Without `large_constants`, tuples and
    arrays of more than `large_constant_elements` print `{...}`; with it all constants can be parsed back, even -0.0.
    `essential_constants` prints only integers and constants that are all 0 or all 1. `compact_operands` prints only the first
    four operands. `compact_get_tuple_element` prints `%t#0` for operands and omits the get-tuple-element lines.
    `canonical_names` numbers the instructions of each computation. `nested_computations` prints called bodies in place of
    their names. `in_creation_order` prints computations in that order, not callees first. `feed_configs` prints the
    configurations of infeed and outfeed. `inline_stack_frames` prints the file, line and column of a stack frame, not its
    number. `ids` prints the part of a name after its first dot, and the names of module and computations.
    `sorted_backend_config` prints the keys of JSON records in alphabetic order. `async_sugar` prints `add-start` for an
    async-start of a computation with one add. `indent` counts steps of two spaces.
    """

    percent: bool = True
    program_shape: bool = True
    result_shape: bool = True
    layouts: bool = True
    operand_shapes: bool = False
    operand_names: bool = True
    operand_index_interval: int = 5
    compact_operands: bool = False
    compact_get_tuple_element: bool = False
    large_constants: bool = False
    large_constant_elements: int = 10
    essential_constants: bool = False
    extra_attributes: bool = True
    full_replica_groups: bool = False
    feed_configs: bool = True
    origin: bool = True
    metadata: bool = True
    inline_stack_frames: bool = False
    backend_config: bool = True
    sorted_backend_config: bool = False
    control_dependencies: bool = True
    canonical_names: bool = False
    nested_computations: bool = False
    in_creation_order: bool = False
    ids: bool = True
    async_sugar: bool = True
    indent: int = 0


DEFAULT = PrintOptions()
SHORT_PARSABLE = PrintOptions(
    percent=False,
    program_shape=False,
    operand_index_interval=0,
    large_constants=True,
    metadata=False,
    control_dependencies=False,
)
CANONICAL = PrintOptions(
    percent=False,
    program_shape=False,
    operand_shapes=True,
    operand_names=False,
    operand_index_interval=0,
    metadata=False,
    backend_config=False,
    control_dependencies=False,
    canonical_names=True,
    nested_computations=True,
)
FINGERPRINT = replace(
    CANONICAL, essential_constants=True, full_replica_groups=True, feed_configs=False, in_creation_order=True, ids=False
)
# XLA's default for dumps.
DUMP = PrintOptions(compact_get_tuple_element=True, async_sugar=False, sorted_backend_config=True)
# Text that parses to an equal module.
FULL = PrintOptions(large_constants=True, async_sugar=False)

# What `str` of an instruction, a computation and a module returns: `printer.py`, which needs the graph, puts its functions here.
# Whatever reads or builds modules imports it; without it, `str` is the name.
TEXT_OF: dict[type, Callable[..., str]] = {}


def text_of(part: Any, *options: PrintOptions) -> str:
    """Return the text of a part of a module."""
    function = TEXT_OF.get(part.__class__)
    return part.name if function is None else function(part, *options)
