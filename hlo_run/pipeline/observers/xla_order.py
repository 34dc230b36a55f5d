"""Places the steps of our rows among the passes of XLA, so that dumps of HLO have XLA's names and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from hlo_run.pass_support.observer import PIPELINE_END, PIPELINE_START, Step

# XLA's passes that report a change whatever they did.
_ALWAYS_CHANGE = frozenset(
    "spmd-partitioning layout-assignment rename_fusions copy-insertion config-assigner scheduling-instruction-annotator".split()
)
TELLING = frozenset(("async-collective-annotator", "latency-hiding-scheduler"))
"""XLA's passes that report a change also where the text stays the same."""
SILENT = frozenset(("collective-pipelining-analyzer",))
"""XLA's passes that do not report what they change."""
# What a pass dumps while it runs.
_DURING = {
    "copy-insertion": (
        "adding_copies_to_resolve_interference",
        "removing_unnecessary_copies",
        "adding_special-case_copies",
    )
}
# XLA runs these twice; the one row of ours is the second one, which changes most.
_SECOND = frozenset(("cublas-gemm-rewriter",))
# Rows of ours that do the work of an XLA pass whose row comes later.
_PART_OF_OTHERS = frozenset(("schedule", "renew-copies"))


class Pipeline(Struct, frozen=True):
    """One of XLA's pipelines: the names of its passes and the pipelines inside it, in order. A pass may be its `runner`."""

    name: str
    items: tuple[str | Pipeline, ...]
    runner: str = ""

    def without(self, is_off: Callable[[str, str], bool]) -> Pipeline:
        """Return the pipeline without the passes for which `is_off(pipeline, pass)`."""
        kept = (item for item in self.items if not is_off(self.name, _name(item)))
        items = tuple(item if isinstance(item, str) else item.without(is_off) for item in kept)
        return Pipeline(self.name, items, self.runner)


class PassDump(Struct, frozen=True):
    """A place where XLA may dump the module: in `pipeline`, after the pass `after` and before the pass `before`.

    `before` is empty for a dump while `after` runs; `after` is then the name of the step. A skipped pass does not run, and
    no dump is named after it.
    """

    pipeline: str
    after: str
    before: str
    changed: bool
    is_skipped: bool = False


class _Open(Struct):
    pipeline: Pipeline
    place: int = 0


class XlaOrder:
    """Turns steps of our rows into the dumps that XLA makes, with the dumps of XLA's other passes, which change nothing.

    `reports` says whether XLA's pass of a name would report a change in the module as it is now, whatever ours reports.
    `is_skipped(pipeline, pass)` says which passes a flag keeps from running; they stay in their pipeline.
    """

    def __init__(
        self, pipelines: tuple[Pipeline, ...], is_skipped: Callable[[str, str], bool] = lambda pipeline, name: False
    ) -> None:
        self._is_skipped = is_skipped
        self.reports: Callable[[str], bool] = lambda name: False
        self._open = [_Open(Pipeline("", pipelines))]

    def before_row(self, step: Step) -> Iterator[PassDump]:
        """Yield the dumps of XLA's passes before the row, with the module as it is now."""
        yield from self._to_pipeline(step.pipeline)
        if self._is_inside(step):
            yield from self._skip_to(self._open[-1], _pass(step))

    def after_step(self, step: Step) -> Iterator[PassDump]:
        """Yield the dumps of a start of a pipeline, a row, or a pipeline inside another."""
        if step.row == PIPELINE_START:
            yield from self._start(step.pipeline)
            return
        yield from self._to_pipeline(step.pipeline)
        inside, name = self._open[-1], _pass(step)
        place = _find(inside, name) if self._is_inside(step) else None
        if place is not None:
            yield from self._skip_to(inside, name)
            inside.place = place + 1
            yield from self._after(inside, name, bool(step.changed))
        elif step.changed and name not in _PART_OF_OTHERS:
            yield PassDump(step.pipeline, name, _next(inside) if self._is_inside(step) else PIPELINE_END, changed=True)

    def _is_inside(self, step: Step) -> bool:
        """True if the pipeline of a step is one of XLA's and open. Pipelines that XLA does not run for a module stay closed."""
        return _same(self._open[-1].pipeline.name, step.pipeline)

    def finish(self) -> Iterator[PassDump]:
        """Yield the dumps of the passes after the last row."""
        while len(self._open) > 1:
            yield from self._close()
        yield from self._rest(self._open[0])

    def _start(self, name: str) -> Iterator[PassDump]:
        """Yield the start of a pipeline. A pipeline that starts again ends first."""
        for depth in range(len(self._open) - 1, -1, -1):
            inside = self._open[depth]
            if depth and _same(inside.pipeline.name, name):
                while len(self._open) > depth + 1:
                    yield from self._close()
                yield from self._rest(inside)
                inside.place = 0
                yield self._begin(inside)
                return
            place = _find(inside, name, is_pipeline=True)
            if place is None:
                continue
            while len(self._open) > depth + 1:
                yield from self._close()
            yield from self._skip_to(inside, name, is_pipeline=True)
            found = inside.pipeline.items[place]
            assert isinstance(found, Pipeline), "only pipelines start"
            self._open.append(_Open(found))
            yield self._begin(self._open[-1])
            return

    def _to_pipeline(self, name: str) -> Iterator[PassDump]:
        """End the pipelines inside the open pipeline `name`."""
        if any(_same(inside.pipeline.name, name) for inside in self._open[1:]):
            while not _same(self._open[-1].pipeline.name, name):
                yield from self._close()

    def _close(self) -> Iterator[PassDump]:
        """End the innermost pipeline. A pipeline inside another one has a separate step afterwards."""
        yield from self._rest(self._open.pop())
        if len(self._open) == 1:
            self._open[0].place += 1

    def _rest(self, inside: _Open) -> Iterator[PassDump]:
        """Yield the dumps of the passes that are left in a pipeline."""
        while inside.place < len(inside.pipeline.items):
            yield from self._pass_by(inside)

    def _skip_to(self, inside: _Open, name: str, is_pipeline: bool = False) -> Iterator[PassDump]:
        place = _find(inside, name, is_pipeline)
        while place is not None and inside.place < place:
            yield from self._pass_by(inside)

    def _pass_by(self, inside: _Open) -> Iterator[PassDump]:
        """Yield the dumps of the next pass, which has no row of ours."""
        item = inside.pipeline.items[inside.place]
        if isinstance(item, Pipeline) and not self._is_skipped(inside.pipeline.name, _name(item)):
            inner = _Open(item)
            yield self._begin(inner)
            yield from self._rest(inner)
        inside.place += 1
        if inside.pipeline.name:
            yield from self._after(inside, _name(item), changed=False)

    def _begin(self, inside: _Open) -> PassDump:
        return PassDump(inside.pipeline.name, PIPELINE_START, _next(inside), changed=False)

    def _after(self, inside: _Open, name: str, changed: bool) -> Iterator[PassDump]:
        if self._is_skipped(inside.pipeline.name, name):
            yield PassDump(inside.pipeline.name, name, _next(inside), changed=False, is_skipped=True)
            return
        for step in _DURING.get(name, ()):
            yield PassDump(name, step, "", changed=True)
        yield PassDump(inside.pipeline.name, name, _next(inside), changed or name in _ALWAYS_CHANGE or self.reports(name))


def read_pipelines(text: str) -> tuple[Pipeline, ...]:
    """Return the pipelines that a text lists by indentation; a name with a colon is a pipeline (`pass/name`: of a pass)."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(item for item in _items(lines, 0, 0)[0] if isinstance(item, Pipeline))


def _items(lines: list[str], place: int, depth: int) -> tuple[list[str | Pipeline], int]:
    """Return the items from a line on that are indented by `depth` steps, and the line after them."""
    items: list[str | Pipeline] = []
    while place < len(lines):
        name = lines[place].strip()
        if len(lines[place]) - len(lines[place].lstrip()) < 2 * depth:
            break
        place += 1
        if not name.endswith(":"):
            items.append(name)
            continue
        inner, place = _items(lines, place, depth + 1)
        runner, _, inner_name = name[:-1].rpartition("/")
        items.append(Pipeline(inner_name, tuple(inner), runner))
    return items, place


def _find(inside: _Open, name: str, is_pipeline: bool = False) -> int | None:
    """Return the place of a pass in the rest of a pipeline; None if it is not there."""
    places = range(inside.place, len(inside.pipeline.items))
    for place in reversed(places) if name in _SECOND else places:
        item = inside.pipeline.items[place]
        found = item.name if is_pipeline and isinstance(item, Pipeline) else _name(item)
        if _same(found, name) and (not is_pipeline or isinstance(item, Pipeline)):
            return place
    return None


def _next(inside: _Open) -> str:
    items = inside.pipeline.items
    return _name(items[inside.place]) if inside.place < len(items) else PIPELINE_END


def _pass(step: Step) -> str:
    return step.pass_name or step.row


def _name(item: str | Pipeline) -> str:
    return item if isinstance(item, str) else item.runner or item.name


def _same(one: str, two: str) -> bool:
    return one == two or re.sub(r"[ -]", "_", one) == re.sub(r"[ -]", "_", two)
