"""The attributes of a module's header that several places read, with their types, and the interface of calling conventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from hlo_run.hlo.attributes.stack_frames import StackFrames
from hlo_run.hlo.values.attribute_values import AttributeValue, EntryLayout
from hlo_run.hlo.values.literal import Literal

# The module, which the graph defines.
_Module = TypeVar("_Module", contravariant=True)
# An instruction has no stack frames: they are the table that the metadata of all instructions refers to.
HeaderValue: TypeAlias = "AttributeValue | StackFrames"


class HeaderAttributes:
    """Reads one attribute of a module's header, with its type. An attribute that the header lacks returns its default."""

    __slots__ = ()

    attrs: dict[str, HeaderValue]

    @property
    def replica_count(self) -> int:
        """The number of replicas."""
        return self._number("replica_count")

    @property
    def num_partitions(self) -> int:
        """The number of partitions of each replica."""
        return self._number("num_partitions")

    def _number(self, name: str) -> int:
        value = self.attrs.get(name, 1)
        return value if isinstance(value, int) else 1

    @property
    def is_scheduled(self) -> bool:
        """True if the text said that the instructions are in the order of a schedule."""
        return bool(self.attrs.get("is_scheduled", False))

    @property
    def propagates_to_output(self) -> tuple[bool, ...]:
        """The `allow_spmd_sharding_propagation_to_output`, one flag or one per element of the result; () without it."""
        flags = self.attrs.get("allow_spmd_sharding_propagation_to_output")
        return tuple([flag for flag in flags if isinstance(flag, bool)]) if isinstance(flags, tuple) else ()

    @property
    def entry_layout(self) -> EntryLayout | None:
        """The `entry_computation_layout`; None without one."""
        layout = self.attrs.get("entry_computation_layout")
        return layout if isinstance(layout, EntryLayout) else None

    @property
    def stack_frames(self) -> StackFrames | None:
        """The stack frames of the instructions' origins; None without any."""
        frames = self.attrs.get("stack_frames")
        return frames if isinstance(frames, StackFrames) else None


class CallingConvention(Protocol[_Module]):
    """Converts a function's arguments to arguments of the module made from it, and the module's result to the function's."""

    def values(self, module: _Module, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """Return a value per entry parameter, or another number of values for other arguments. Raises UsageError."""
        ...

    def result(self, module: _Module, literal: Literal) -> Literal:
        """Convert the module's result to the function's."""
        ...
