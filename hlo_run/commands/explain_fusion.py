"""`--explain=fusion`: prints why instructions were fused or not, in the order of the fusion passes' decisions.

priority-fusion
  fused      %exp -> %neg    saves 1.00 us: 2.08 us apart, 1.08 us together
  not fused  %sum -> %neg.2  both the producer and the consumer contain a reduce
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from hlo_run.analysis.executed_computations import fusible_computations
from hlo_run.analysis.fusion.fusion_process import AnyFusionStep, Fused, Joined, KeptApart, Refused, Weighed
from hlo_run.analysis.fusion.fusion_rules import is_fusible
from hlo_run.commands.target_choice import choose_target
from hlo_run.commands.task import Task
from hlo_run.errors import UsageError
from hlo_run.hlo.fusion_graph import FusionGraph
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import NO_CODE
from hlo_run.pass_support.observer import OPTIMIZED_HLO, Observer, Step, StopAtStage
from hlo_run.pipeline.compile import optimize

_TOPIC = "fusion"
# Rows that fuse, in their order.
_PASSES = ("priority-fusion", "multi_output_fusion")


def asked_names(text: str) -> tuple[str, ...]:
    """Return the instructions that `--explain` names, at most two; raises UsageError."""
    topic, _, names = text.partition(":")
    if topic != _TOPIC:
        raise UsageError(f"--explain={text} is unknown", hint="--explain=fusion, or --explain=fusion:NAME,NAME")
    found = tuple(name.strip().lstrip("%") for name in names.split(",") if name.strip())
    if len(found) > 2:
        raise UsageError(f"--explain={text} names {len(found)} instructions", hint="name one, or a producer and its user")
    return found


class _Line(Struct, frozen=True):
    """A decision about a producer and its consumers. `sides` are the original instructions that each side contained then."""

    pass_name: str
    answer: str
    pair: str
    why: str
    sides: tuple[frozenset[str], frozenset[str]]

    def concerns(self, names: Sequence[str]) -> bool:
        """True if a single name is on either side, or two names are on different sides. True without names."""
        first, second = self.sides
        if len(names) < 2:
            return not names or names[0] in first or names[0] in second
        one, two = names
        return (one in first and two in second) or (two in first and one in second)


class _Story(Struct):
    """The decisions so far. `members` maps a fusion's name to the original instructions in it."""

    members: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    lines: list[_Line] = field(default_factory=list[_Line])
    weighed: dict[str, Weighed] = field(default_factory=dict[str, Weighed])

    def of(self, *names: str) -> frozenset[str]:
        """Return the original instructions that the nodes of these names contain."""
        return frozenset[str]().union(*(self.members.get(name, frozenset((name,))) for name in names))

    def tell(self, pass_name: str, steps: Sequence[AnyFusionStep]) -> None:
        """Add the decisions of a pass."""
        for step in steps:
            match step:
                case Fused():
                    self._add(pass_name, "fused", step.producer, (step.consumer,), self._saving(step.producer))
                    self.members[step.fusion] = self.of(step.producer, step.consumer)
                case Refused():
                    by = f" (%{step.refusing})" if step.refusing and len(step.consumers) > 1 else ""
                    self._add(pass_name, "not fused", step.producer, step.consumers, step.reason + by)
                case Weighed():
                    self.weighed[step.producer] = step
                    if step.fused > step.unfused:
                        self._add(pass_name, "not fused", step.producer, step.consumers, _slower(step))
                case Joined():
                    saves = f"saves {step.unfused - step.fused:.2f} us: {_times(step.fused, step.unfused)}"
                    why = f"both read %{step.source}" if step.source else saves
                    self._add(pass_name, "joined", step.other, (step.kept,), why, "+" if step.source else "->")
                    self.members[step.fusion] = self.of(step.kept, step.other)
                case KeptApart():
                    both = f"both read %{step.source}, but " if step.source else ""
                    self._add(pass_name, "not joined", step.other, (step.one,), both + step.reason, "+" if both else "->")

    def _saving(self, producer: str) -> str:
        """Return the text of the time that fusing the producer saves, by its last estimate."""
        step = self.weighed.get(producer)
        if step is None:
            return "costs nothing"
        among = f" (all {len(step.consumers)} users)" if len(step.consumers) > 1 else ""
        return f"saves {step.unfused - step.fused:.2f} us: {_times(step.fused, step.unfused)}{among}"

    def _add(self, pass_name: str, answer: str, producer: str, consumers: Sequence[str], why: str, relation: str = "->") -> None:
        users = ", ".join(f"%{name}" for name in consumers) or "-"
        sides = (self.of(producer), self.of(*consumers))
        line = _Line(pass_name, answer, f"%{producer} {relation} {users}", why, sides)
        if not self.lines or self.lines[-1] != line:
            self.lines.append(line)


def _times(fused: float, unfused: float) -> str:
    return f"{unfused:.2f} us apart, {fused:.2f} us together"


def _slower(step: Weighed) -> str:
    """Return the text of a fusion that costs time, with the change of each user's kernel if the producer has several users."""
    text = f"slower: {_times(step.fused, step.unfused)}"
    if len(step.consumers) < 2:
        return text
    users = zip(step.consumers, step.savings, strict=True)
    return f"{text}; kernels change by " + ", ".join(f"{-saving:+.2f} us (%{name})" for name, saving in users)


class FusionExplainer(Observer):
    """Collects the decisions of the fusion passes about `working`, prints those about `names`, and raises StopAtStage.

    `names` are instructions of the module before fusion. Raises UsageError for other names.
    """

    def __init__(self, working: HloModule, target: str, names: Sequence[str], write: Callable[[str], None]) -> None:
        self._working, self._target, self._names, self._write = working, target, names, write
        self._story = _Story()
        self._before: dict[str, str] = {}
        self._unfusible: set[str] = set()
        self._kernels: dict[str, HloInstruction] = {}

    def before(self, step: Step) -> None:
        """Record the instructions before fusion, at the first fusion pass."""
        if step.row == _PASSES[0]:
            self._look()

    def decided(self, row: str, steps: Sequence[AnyFusionStep]) -> None:
        """Collect the decisions of the fusion pass `row`."""
        if not self._before:
            self._look()
        self._story.tell(row, steps)

    def after(self, step: Step) -> None:
        """Record the kernels after each fusion pass; after the last HLO row print the decisions and raise StopAtStage.

        Raises UsageError if the module had no instruction of one of the names before fusion.
        """
        if step.row in _PASSES:
            computations = fusible_computations(self._working)
            self._kernels = {i.name: i for c in computations for i in c.instructions if i.opcode not in NO_CODE}
        elif step.row == OPTIMIZED_HLO:
            self._write("\n".join(self._text()))
            raise StopAtStage

    def _look(self) -> None:
        """Record the instructions before fusion."""
        for computation in fusible_computations(self._working):
            graph = FusionGraph(computation)
            for instruction, node in graph.nodes.items():
                self._before[instruction.name] = instruction.opcode
                if not is_fusible(node):
                    self._unfusible.add(instruction.name)
                if instruction.opcode == "fusion":
                    inside = {i.name: i.opcode for i in instruction.fused_computation.instructions if i.opcode != "parameter"}
                    self._before |= inside
                    self._story.members[instruction.name] = frozenset((instruction.name, *inside))

    def _text(self) -> Iterator[str]:
        if not self._before:
            yield f"{self._working.name}: no fusion pass ran"
            return
        self._check_names()
        what = " and ".join(f"%{name}" for name in self._names) or "its instructions"
        yield f"{self._working.name} for {self._target}: decisions about {what} by the fusion passes"
        lines = [line for line in self._story.lines if line.concerns(self._names)]
        width = max((len(line.pair) for line in lines), default=0)
        for name in _PASSES:
            mine = [line for line in lines if line.pass_name == name]
            if mine:
                yield f"\n{name}"
                yield from (f"  {line.answer:<10}  {line.pair:<{min(width, 60)}}  {line.why}" for line in mine)
        yield from self._verdict(bool(lines))

    def _check_names(self) -> None:
        for name in self._names:
            if name not in self._before:
                close = difflib.get_close_matches(name, self._before, n=3)
                meant = f"did you mean {', '.join(close)}? " if close else ""
                hint = f"{meant}use a name from before fusion; --explain=fusion lists all decisions"
                raise UsageError(f"--explain: the module has no %{name} before fusion", hint=hint)

    def _verdict(self, has_lines: bool) -> Iterator[str]:
        """Yield the lines about the kernels that compute the named instructions."""
        if not self._names:
            return
        yield ""
        homes = [self._homes(name) for name in self._names]
        for name, found in zip(self._names, homes, strict=True):
            yield self._where(name, found)
        if len(homes) == 2:
            common = [name for name in homes[0] if name in homes[1]]
            yield "they share a kernel" if common else "they share no kernel"
            if not common and not has_lines:
                yield "no decision concerns both: neither reads the other's value, and they read no common value"

    def _homes(self, name: str) -> list[str]:
        """Return the final names of the kernels that compute an instruction."""
        return [kernel.name for node, kernel in self._kernels.items() if name in self._story.of(node)]

    def _where(self, name: str, homes: Sequence[str]) -> str:
        opcode = self._before[name]
        if opcode in NO_CODE and not homes:
            return f"%{name} is a {opcode}: no kernel computes it"
        if name in self._unfusible:
            return f"%{name} ({opcode}) is never part of a fusion"
        places = ", ".join(f"%{home}" for home in homes)
        return f"%{name} ({opcode}) is computed " + (f"in {places}" if homes else "nowhere: an equal instruction replaces it")


def explain_fusion(task: Task, module: HloModule) -> None:
    """Print the decisions of the fusion passes. Raises StopAtStage once they are printed, and UsageError for unknown names."""
    names = asked_names(task.options.explain)
    target = choose_target(task.options)

    def explainer(working: HloModule) -> Observer:
        return FusionExplainer(working, target.name, names, task.console.out)

    with task.observers.compiling(task.options, module, target, [explainer]) as (ctx, working):
        optimize(ctx, working)
