"""`--xla_dump_module_metadata`: the passes that ran on a module, as XLA's HloModuleMetadataProto."""

from __future__ import annotations

import time

from msgspec import Struct, field

from hlo_run.pipeline.observers.xla_order import PassDump


class PassMetadata(Struct):
    """Collects passes in their order. `module_id` is the number of the module; times are in microseconds."""

    module_id: int
    _blocks: list[str] = field(default_factory=list[str])
    _last: int = field(default_factory=lambda: _now())

    def add(self, dump: PassDump, paths: list[str]) -> None:
        """Add a pass that ended just now, with the paths of its dumps."""
        begin, self._last = self._last, _now()
        lines = [f"  pass_id: {len(self._blocks) + 1}", f'  pass_name: "{dump.after}"', f'  pipeline_name: "{dump.pipeline}"']
        lines += [f'  dump_filenames: "{path}"' for path in paths]
        lines += ["  module_changed: true"] if dump.changed else []
        lines += [f"  start_timestamp_usec: {begin}", f"  end_timestamp_usec: {self._last}"]
        self._blocks.append("\n".join(["pass_metadata {", *lines, "}"]))

    def text(self) -> str:
        """Return the text proto."""
        head = [f"canonical_module_id: {self.module_id}"] if self.module_id else []
        return "\n".join([*head, *self._blocks]) + "\n"


def _now() -> int:
    return time.time_ns() // 1000
