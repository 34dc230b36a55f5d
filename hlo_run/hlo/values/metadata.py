"""The origin of an instruction in the user's program (XLA's `OpMetadata`)."""

from __future__ import annotations

from msgspec import Struct

from hlo_run.hlo.values.escape import escape

# In printing order; True marks text fields.
_FIELDS = (
    ("op_type", True),
    ("op_name", True),
    ("source_file", True),
    ("source_line", False),
    ("source_end_line", False),
    ("source_column", False),
    ("source_end_column", False),
    ("profile_type", False),
    ("deduplicated_name", True),
    ("scheduling_name", True),
    ("stack_frame_id", False),
)


class OpMetadata(Struct, frozen=True):
    """The fields of `metadata={..}`. Empty text, 0 and () mean an absent field; an absent payload is None."""

    op_type: str = ""
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    source_end_line: int = 0
    source_column: int = 0
    source_end_column: int = 0
    profile_type: tuple[int, ...] = ()
    deduplicated_name: str = ""
    scheduling_name: str = ""
    stack_frame_id: int = 0
    metadata_payload: str | None = None

    @property
    def says_something(self) -> bool:
        """True if the metadata is printed: it has more than lines and columns."""
        names = self.op_type or self.op_name or self.source_file or self.scheduling_name
        return bool(names or self.stack_frame_id) or self.metadata_payload is not None

    def __str__(self) -> str:
        parts: list[str] = []
        for name, is_text in _FIELDS:
            value = getattr(self, name)
            if value and is_text:
                parts.append(f'{name}="{escape(value)}"')
            elif value:
                parts.append(f"{name}={{{','.join(map(str, value))}}}" if name == "profile_type" else f"{name}={value}")
        if self.metadata_payload is not None:
            parts.append(f'metadata_payload="{escape(self.metadata_payload)}"')
        return "{" + " ".join(parts) + "}"
