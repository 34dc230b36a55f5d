"""The fields of records. Most records are structs of msgspec: making such a class costs a thirtieth of a dataclass.

In the compiled core a record is a class of mypyc instead (`native.py`), so changed copies are made here for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from hlo_run.records import native
from hlo_run.records.native import NativeRecord

_T = TypeVar("_T")

# Whether the modules that can be compiled are.
IS_COMPILED = not native.__file__.endswith(".py")


def field_types(kind: type[Any]) -> dict[str, Any]:
    """Return the annotations of a struct's or dataclass's fields as they are written, in the order of the fields."""
    if issubclass(kind, NativeRecord):
        return kind.__struct_types__
    types = {name: hint for base in reversed(kind.__mro__) for name, hint in vars(base).get("__annotations__", {}).items()}
    names: tuple[str, ...] = getattr(kind, "__struct_fields__", None) or tuple(getattr(kind, "__dataclass_fields__", ()))
    return {name: types[name] for name in names}


if TYPE_CHECKING or IS_COMPILED:

    def replace(record: _T, /, **changes: Any) -> _T:
        """Return a copy of a record with other values in the named fields."""
        if not isinstance(record, NativeRecord):
            struct: Any = record
            return structs.replace(struct, **changes)
        copy: Any = record.copied_with(changes)
        assert not changes, f"{type(record).__name__} has no field {', '.join(changes)}"
        return copy
else:
    replace = structs.replace
