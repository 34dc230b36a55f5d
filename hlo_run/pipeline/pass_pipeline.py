"""`HloPassPipeline`: passes that a program chooses, in its order."""

from __future__ import annotations

import difflib
import functools
from typing import Self

from hlo_run import target as targets
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.ops.verify import READING
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import HloPass, PassContext
from hlo_run.pipeline.plugin_passes import plugin_rows
from hlo_run.pipeline.runner import run_hlo_groups
from hlo_run.pipeline.table import PIPELINE, HloGroup, HloRow
from hlo_run.pipeline.table_rows import numbered, spelling
from hlo_run.records import replace


class HloPassPipeline:
    """Passes in an order, as XLA's class of this name.

        pipeline = HloPassPipeline("cleanup").add_pass("algsimp").add_pass("dce").add_pass(MyPass())
        changed = pipeline.run(module)

    A pass is an object with a `name` and `apply(ctx, module)`, which edits the module in place, or the name of a pass of
    hlo-run or of an entry point of the group `hlo_run.passes`. `target` is the GPU that passes see; `options` are compile flags.
    """

    def __init__(
        self, name: str = "pipeline", *, target: str = targets.DEFAULT_TARGET, options: CompileOptions | None = None
    ) -> None:
        """Make an empty pipeline. Raises UsageError for an unknown GPU."""
        self.name = name
        self._ctx = PassContext(targets.preset(target), options or CompileOptions(verify="every"))
        self._rows: list[HloRow] = []

    @property
    def passes(self) -> list[str]:
        """The names of the passes in their order."""
        return [row.name for row in self._rows]

    def add_pass(self, added: HloPass | str) -> Self:
        """Add a pass to the end. Raises UsageError for an unknown name."""
        self._rows.append(_row_of(added))
        return self

    def run(self, module: HloModule) -> bool:
        """Run the passes on `module` in place, and return whether they changed it.

        The module is verified before the first pass and after each one; with `options` as their `verify` says. Raises ParseError
        for an invalid module, PluginError for a pass of yours that fails or makes an invalid one, InternalError for one of ours.
        """
        version = module.version
        rows = tuple(replace(row, required=True, when=_runs) for row in self._rows)
        run_hlo_groups(numbered([HloGroup(self.name, rows)]), self._ctx, module, READING, keeps_layouts=False)
        return module.version != version


def _row_of(added: HloPass | str) -> HloRow:
    if not isinstance(added, str):
        is_ours = type(added).__module__.startswith("hlo_run.")
        return HloRow(added.name, functools.partial(_always, added), plugin="" if is_ours else type(added).__qualname__)
    known = {spelling(row.pass_name): replace(row, name=row.pass_name, number=1) for row in reversed(_table_rows())}
    known |= {spelling(name): row for name, row in plugin_rows().items()}
    row = known.get(spelling(added))
    if row is None:
        close = difflib.get_close_matches(spelling(added), known, n=1)
        raise UsageError(f"no pass is called '{added}'", hint=f"did you mean {close[0]}?" if close else "hlo-opt --list-passes")
    return row


def _runs(ctx: PassContext) -> bool:
    del ctx
    return True


def _always(made: HloPass, ctx: PassContext) -> HloPass:
    del ctx
    return made


def _table_rows() -> list[HloRow]:
    return [row for group in PIPELINE for _, row in group.all_rows()]
