"""Judges what one HLO row rewrote: proves regions equal by their structure, and compares the others on random operands."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from hlo_run.analysis.open_reduction import reason_of_reduction
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.reference.evaluate.devices import DeviceGrid, is_unpartitioned
from hlo_run.reference.evaluate.plan import callees_first
from hlo_run.reference.values import Value
from hlo_run.region_checks.cut import Cutter, Region
from hlo_run.region_checks.effects import reason_against_all
from hlo_run.region_checks.judge import ONE_DEVICE, Kind, Verdict, judge
from hlo_run.region_checks.numbering import Numbering, Table, shape_key

# A region that differs is judged again with what its inputs are computed from, in so many steps. Far from the region, other
# numbers may hide a wrong one.
_MORE = 3
# So often it is judged with more of what is computed from its results.
_MOST_ROUNDS = 4
_MOST_INSTRUCTIONS = 3000
_MOST_DEVICES = 8


class Snapshot(Struct, frozen=True):
    """A copy of a module between rows, and what each part of it is a copy of."""

    module: HloModule
    instructions: dict[HloInstruction, HloInstruction]
    computations: dict[HloComputation, HloComputation]

    @staticmethod
    def of(working: HloModule) -> Snapshot:
        """Copy a module that passes edit. The copy has no schedule."""
        copy = working.clone()
        copy.schedule = None
        computations = dict(zip(copy.computations, working.computations, strict=True))
        instructions = {
            two: one for new, old in computations.items() for two, one in zip(new.instructions, old.instructions, strict=True)
        }
        return Snapshot(copy, instructions, computations)


class WrongRegion(Struct, frozen=True):
    """A rewrite that is wrong: its region, and the verdict."""

    region: Region
    verdict: Verdict

    @property
    def values(self) -> list[Value]:
        """The operands on which the two sides differ."""
        return list(self.verdict.values)


class NotJudged(Struct, frozen=True):
    """A region that cannot be evaluated alone: its instructions that compute something, with the reason of each."""

    region: Region
    reasons: dict[HloInstruction, str]


class RowReport(Struct):
    """The report on a row: how many instructions it made, which regions were not judged, and which are wrong.

    A region in which nothing is left counts the instructions that went. `is_proven`: the module computes the same, whatever
    its arguments are.
    """

    is_proven: bool = False
    changed: int = 0
    not_judged: list[NotJudged] = field(default_factory=list[NotJudged])
    wrong: list[WrongRegion] = field(default_factory=list[WrongRegion])


class RowJudge:
    """Judges rows of one compilation. A region that was judged once is not judged again.

    Regions with collectives are judged on the devices of `grid`, unless these are many or the module is not partitioned yet.
    """

    def __init__(self, grid: DeviceGrid = ONE_DEVICE) -> None:
        self._grid = grid if grid.size <= _MOST_DEVICES else ONE_DEVICE
        self._devices = ONE_DEVICE  # those of the row that is judged now
        self._table = Table()
        self._judged: dict[tuple[int, int], Verdict] = {}
        self.counts = dict.fromkeys(Kind, 0)

    def report(self, before: Snapshot, after: Snapshot) -> RowReport:
        """Judge the rewrites between two states of a module."""
        is_partitioned = not is_unpartitioned(before.module) and not is_unpartitioned(after.module)
        self._devices = self._grid if is_partitioned else ONE_DEVICE
        row = _Row(self, before, after)
        row.judge()
        return row.report

    def verdict(self, region: Region) -> Verdict:
        """Return the verdict on a region without more of its inputs."""
        for side in (region.old, region.new):
            for instruction in side.inside:
                if reason := self.reason_against(instruction):
                    return Verdict(Kind.NOT_JUDGED, reason)
        if any(shape_key(claim.old.shape) != shape_key(claim.new.shape) for claim in region.claims):
            return Verdict(Kind.NOT_JUDGED, "another shape")
        old, new = region.modules("region")
        key = self._key(old), self._key(new)
        if key[0] == key[1]:
            return Verdict(Kind.AGREES)
        if key not in self._judged:
            self._judged[key] = _judge(region, old, new, self._devices if region.needs_devices else ONE_DEVICE)
        return self._judged[key]

    def reason_against(self, instruction: HloInstruction) -> str:
        """Return why an instruction or one that it calls cannot be evaluated in this row, or nothing."""
        return reason_against_all(instruction, self._devices.size > 1)

    def numbering(self, snapshot: Snapshot) -> Numbering:
        """Return the numbers of a module's values."""
        return Numbering(self._table, snapshot.module, snapshot.instructions)

    def _key(self, module: HloModule) -> int:
        return Numbering(self._table, module, {}).computation(module.entry)


def _judge(region: Region, old: HloModule, new: HloModule, grid: DeviceGrid) -> Verdict:
    """Compare both sides of a region. They may differ in what HLO leaves open."""
    verdict = judge(old, new, region.both("region"), grid)
    if verdict.kind is not Kind.DIFFERS:
        return verdict
    reasons = (reason for instruction in old.instructions if (reason := reason_of_reduction(instruction)))
    open_for = next(reasons, "")
    return Verdict(Kind.NOT_JUDGED, open_for) if open_for else verdict


class _Differed(Struct, frozen=True):
    """A region that differs, and the kept instructions whose claims on it may be wrong."""

    region: Region
    verdict: Verdict
    makers: set[HloInstruction]


class _Row:
    def __init__(self, judge: RowJudge, before: Snapshot, after: Snapshot) -> None:
        self._judge, self._old, self._new = judge, before, after
        self._before, self._after = judge.numbering(before), judge.numbering(after)
        kept = {live: copy for copy, live in before.instructions.items()}
        self._partner = {two: one for two, live in after.instructions.items() if (one := kept.get(live)) is not None}
        self.report = RowReport()
        # Computations in which a region differs. Whoever calls them decides.
        self._suspects: dict[HloComputation, WrongRegion] = {}

    def judge(self) -> None:
        """Judge all pairs of computations, callees first."""
        before, after = self._old.module, self._new.module
        if self._before.computation(before.entry) == self._after.computation(after.entry):
            self.report.is_proven = True
            return
        kept = {live: copy for copy, live in self._old.computations.items()}
        for new in callees_first([after.entry]):
            old = before.entry if new is after.entry else kept.get(self._new.computations[new])
            if (old is not None and old is not before.entry) or new is after.entry:
                assert old is not None, "the entry has a partner"
                self._pair(old, new, new is after.entry)

    def _pair(self, old: HloComputation, new: HloComputation, is_entry: bool) -> None:
        if self._before.computation(old) == self._after.computation(new):
            return
        verdicts = self._verdicts(old, new)
        if verdicts is None:
            return
        wrong: list[WrongRegion] = []
        for region, verdict in verdicts:
            self._count(region, verdict)
            suspect = self._suspect(region)
            if verdict.kind is Kind.DIFFERS:
                wrong.append(suspect or WrongRegion(region, verdict))
            elif verdict.kind in (Kind.BLANK, Kind.ROUNDED) and suspect is not None:
                wrong.append(suspect)  # what calls it tells nothing
        if is_entry:
            self.report.wrong += wrong
        elif wrong:
            self._suspects[new] = wrong[0]
        elif all(_settles(region, verdict, _is_loop(new)) for region, verdict in verdicts):
            self._after.aliases[new] = (self._before, old)
            self._after.forget(new)

    def _suspect(self, region: Region) -> WrongRegion | None:
        """Return the wrong region in a computation that a region calls."""
        called = [computation for instruction in region.new.inside for computation in instruction.called_computations]
        return next((self._suspects[c] for c in callees_first(called) if c in self._suspects), None)

    def _verdicts(self, old: HloComputation, new: HloComputation) -> list[tuple[Region, Verdict]] | None:
        """Return the regions of two computations with their verdicts; None if they take or return other shapes.

        Where a region differs, and the row changed the use of what depends on it, a larger region decides.
        """
        changed: set[HloInstruction] = set()
        differed: list[_Differed] = []
        for rounds in range(_MOST_ROUNDS + 1):
            cutter = Cutter(self._before, self._after, old, new, self._partner, changed)
            if not cutter.fits:
                return None
            found: list[tuple[Region, Verdict]] = []
            larger: list[_Differed] = []
            for smallest in cutter.regions():
                region, verdict = self._settled(smallest, self._judge.verdict(smallest), differed)
                makers = set[HloInstruction]()
                if verdict.first is not None and region is smallest:
                    makers = cutter.misled(region.claims_at(verdict.first.outputs))
                if makers and rounds < _MOST_ROUNDS:
                    larger.append(_Differed(region, verdict, makers))
                elif verdict.kind is Kind.DIFFERS and region is smallest:
                    verdict = self._in_context(cutter, region, verdict)
                found.append((region, verdict))
            if not larger:
                return found
            differed = larger
            changed.update(maker for each in larger for maker in each.makers)
        raise AssertionError("the last round returns")

    @staticmethod
    def _settled(region: Region, verdict: Verdict, differed: Sequence[_Differed]) -> tuple[Region, Verdict]:
        """Return a region with its verdict, or the smaller one that differs in it, if the larger one tells nothing."""
        if verdict.kind is Kind.BLANK:
            inside = set(region.new.inside)
            for smaller in differed:
                if inside & smaller.makers:
                    return smaller.region, smaller.verdict
        return region, verdict

    def _count(self, region: Region, verdict: Verdict) -> None:
        changed = region.new.work or region.old.work
        self.report.changed += len(changed)
        if verdict.kind is Kind.NOT_JUDGED:
            reasons = {instruction: self._judge.reason_against(instruction) or verdict.reason for instruction in changed}
            self.report.not_judged.append(NotJudged(region, reasons))

    def _in_context(self, cutter: Cutter, region: Region, first: Verdict) -> Verdict:
        """Return the verdict on a region that differs: it agrees if it does so with more of what its inputs are computed from.

        Sides with other inputs differ on random ones, so the first larger region with equal inputs decides.
        """
        opened: set[int] = set()
        grown = region
        steps = 0
        while steps < _MORE and len(grown.new.inside) <= _MOST_INSTRUCTIONS:
            # An input of one side alone depends on the others: a step that opens it does not count as context.
            steps += grown.is_balanced
            larger = cutter.grown(grown, opened)
            if larger is None:
                break
            grown = larger
            verdict = self._judge.verdict(grown)
            is_decided = grown.is_balanced and not region.is_balanced and verdict.kind is not Kind.DIFFERS
            if is_decided or verdict.kind is Kind.AGREES:
                return verdict
        return first


def _settles(region: Region, verdict: Verdict, is_in_loop: bool) -> bool:
    """True if callers need not be judged for a region's sake.

    A loop is judged as a whole as well, unless only floats matter: random integers rarely meet the bound of its condition.
    """
    if is_in_loop:
        return verdict.kind is Kind.AGREES and _is_of_floats(region)
    return verdict.kind in (Kind.AGREES, Kind.BLANK, Kind.ROUNDED)


def _is_of_floats(region: Region) -> bool:
    """True if a region computes from floats alone."""
    inputs = [same[0] for side in (region.old, region.new) for same in side.inputs.values()]
    leaves = [leaf for value in inputs for _, leaf in value.shape.leaves()]
    return all(leaf.is_array and (leaf.dtype.is_float or leaf.dtype.is_complex) for leaf in leaves)


def _is_loop(computation: HloComputation) -> bool:
    return any(caller.opcode == "while" for caller in computation.callers)
