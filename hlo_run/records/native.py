"""The base of records in compiled modules.

Records are structs of msgspec. mypyc cannot compile those, so the build makes them plain classes with this base
(`scripts/compiled_core/records.py`). The base has what does not depend on the fields.
"""

from __future__ import annotations

from typing import Any, ClassVar


class NativeRecord:
    """A record in a compiled module; see the module's docstring."""

    __struct_fields__: ClassVar[tuple[str, ...]] = ()
    # The annotations of the fields, as they are written in the source.
    __struct_types__: ClassVar[dict[str, str]] = {}

    def copied_with(self, changes: dict[str, Any]) -> Any:
        """Return a copy with other values in the fields that `changes` names, and remove them from it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__])
        return f"{type(self).__name__}({values})"

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return type(self), tuple([getattr(self, name) for name in self.__struct_fields__])

    def __copy__(self) -> Any:
        return self.copied_with({})
