"""Shrinks a dump of kernel IR while it keeps its failure: operations, functions and attributes go, values become simpler ones.

Every candidate passes the verifier before it is asked about. The smallest text so far is always on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

# Before all of xDSL's dialects, whose definitions are then made when they are used.
from hlo_run.dialects.parse import parse_module

# isort: split
from msgspec import Struct, field
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IndexType, IntegerAttr, IntegerType, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator
from xdsl.transforms.dead_code_elimination import is_trivially_dead
from xdsl.utils.exceptions import DiagnosticException, VerifyException
from xdsl.utils.hints import isa

from hlo_run.containment.progress import Progress
from hlo_run.dialects.printer import print_module
from hlo_run.errors import HloRunError
from hlo_run.triage.reduce import Predicate
from hlo_run.triage.trials import Ended, run_fork, run_forks
from hlo_run.whole_files import write_whole

_NOT_A_CANDIDATE = "not a smaller valid kernel"
_HEADER = "// row: "
# A trial may take this many times as long as the original, and at least so many seconds.
_PATIENCE, _LEAST_SECONDS = 4.0, 10.0

# An edit of a freshly parsed module; False if it does not apply.
Edit: TypeAlias = "Callable[[ModuleOp], bool]"
Size: TypeAlias = tuple[int, int]


class KernelReduction(Struct):
    """The state of a reduction: the smallest text so far, its size (operations, characters) and what was tried."""

    text: str
    wanted: str
    first: Size
    size: Size
    trials: int = 0
    seconds: float = 0.0
    finished: bool = False
    seen: set[str] = field(default_factory=set[str])


class KernelReducer:
    """Reduces one dump for one predicate with `jobs` trials at once, for `seconds` (0: until nothing helps)."""

    def __init__(self, predicate: Predicate, output: str, folder: Path, jobs: int, seconds: float, progress: Progress) -> None:
        self._predicate, self._output, self._folder, self._jobs, self._progress = predicate, output, folder, jobs, progress
        self._begin, self._seconds, self._number = time.monotonic(), seconds, 0
        self._limit_seconds = 0.0
        self._header = ""
        self._state: KernelReduction | None = None

    @property
    def state(self) -> KernelReduction:
        """The state; set by `start`."""
        assert self._state is not None, "start comes first"
        return self._state

    def start(self, text: str, file: str, limit_seconds: float) -> str:
        """Ask about the printed text. Return the failure, or "" if it has none. Raises ParseError for a bad file."""
        first, _, rest = text.partition("\n")
        self._header = f"{first}\n" if first.startswith(_HEADER) else ""
        module = parse_module(rest if self._header else text, file)
        printed = self._header + print_module(module)
        path = self._folder / "first.mlir"
        path.write_text(printed, encoding="utf-8")
        self._progress.doing = "the first run"
        ended = run_fork(partial(self._predicate.ask, str(path)), limit_seconds or 600.0, self._progress)
        wanted = _bucket(ended)
        if not wanted:
            return ""
        self._limit_seconds = limit_seconds or max(_LEAST_SECONDS, _PATIENCE * ended.seconds)
        size = _size(module, printed)
        self._state = KernelReduction(printed, wanted, size, size, seen={printed})
        write_whole(self._output, printed.encode())
        return wanted

    def reduce(self) -> KernelReduction:
        """Take steps until none makes the kernel smaller, or the time is over. Return the final state."""
        state = self.state
        while not self._is_over():
            before = state.size
            for name, edits in _STEPS:
                smaller = state.size
                self._progress.doing = f"{smaller[0]} operations, {name}"
                self._sweep(edits)
                if state.size != smaller:
                    self._progress.tell(f"{time.monotonic() - self._begin:6.1f} s  {state.size[0]:6} operations  {name}")
            if state.size == before:
                state.finished = not self._is_over()
                break
        state.seconds = time.monotonic() - self._begin
        return state

    def _keeps(self, end: Ended) -> bool:
        return _bucket(end) == self.state.wanted

    def _is_over(self) -> bool:
        return bool(self._seconds) and time.monotonic() - self._begin > self._seconds

    def _sweep(self, edits: Callable[[ModuleOp], Iterator[Edit]]) -> None:
        """Try all edits in order. After one that keeps the failure, go on with the edits of the smaller kernel."""
        place = 0
        while not self._is_over():
            window = list(edits(self._module()))[place : place + 4 * self._jobs]
            if not window:
                return
            paths = [self._path() for _ in window]
            works = [partial(self._work, edit, path) for edit, path in zip(window, paths, strict=True)]
            ends = run_forks(works, self._jobs, self._limit_seconds, self._keeps, self._progress)
            kept = next((n for n, end in enumerate(ends) if end is not None and self._keeps(end)), None)
            texts = [path.read_text(encoding="utf-8") if path.exists() else "" for path in paths]
            for path, text in zip(paths, texts, strict=True):
                path.unlink(missing_ok=True)
                self.state.seen.add(text)
            self.state.trials += sum(end is not None for end in ends)
            if kept is None:
                place += len(window)
                continue
            self.state.text = texts[kept]
            self.state.size = _size(self._module(), self.state.text)
            write_whole(self._output, self.state.text.encode())
            place += kept

    def _module(self) -> ModuleOp:
        return parse_module(self.state.text.removeprefix(self._header))

    def _path(self) -> Path:
        self._number += 1
        return self._folder / f"trial_{self._number}.mlir"

    def _work(self, edit: Edit, path: Path) -> str:
        """Make the edited kernel, check it, write it, and ask. In a fork."""
        try:
            module = self._module()
            if not edit(module):
                return _NOT_A_CANDIDATE
            _erase_dead(module)
            module.verify()
            text = self._header + print_module(module)
            made = parse_module(text.removeprefix(self._header))
            made.verify()
        except (HloRunError, DiagnosticException, VerifyException, AssertionError, LookupError, TypeError, ValueError):
            return _NOT_A_CANDIDATE
        if text in self.state.seen or _size(made, text) >= self.state.size:
            return _NOT_A_CANDIDATE
        path.write_text(text, encoding="utf-8")
        return self._predicate.ask(str(path))


def _bucket(end: Ended) -> str:
    return end.bucket or str(end.value or "")


def _size(module: ModuleOp, text: str) -> Size:
    return sum(1 for _ in module.walk()), len(text)


def _erase_dead(module: ModuleOp) -> None:
    """Erase operations that nothing needs, and private functions without callers, until none is left."""
    while True:
        dead = [op for op in module.walk(reverse=True) if op is not module and op.parent is not None and is_trivially_dead(op)]
        text = [op for op in module.walk() if op.properties.get("callee") or op.properties.get("combiner")]
        called = {str(op.properties.get("callee") or op.properties.get("combiner")) for op in text}
        dead += [
            op
            for op in module.body.block.ops
            if isinstance(op, func.FuncOp) and op.sym_visibility is not None and f"@{op.sym_name.data}" not in called
        ]
        if not dead:
            return
        for op in dead:
            if op.parent is not None:
                Rewriter.erase_op(op)


# ---- edits: an operation is named by its number in the walk, since every trial parses the text again


def _inner(module: ModuleOp) -> list[Operation]:
    """Return the operations of functions without terminators, later ones first."""
    skipped = (ModuleOp, func.FuncOp)
    return [op for op in module.walk() if not isinstance(op, skipped) and not op.has_trait(IsTerminator)][::-1]


def _simpler(value: SSAValue, op: Operation) -> SSAValue | None:
    """Return a constant of a value's type before `op`; None if the type has none here."""
    attribute = _zero(value.type)
    if attribute is None or isinstance(op, arith.ConstantOp):
        return None
    constant = arith.ConstantOp.create(result_types=[value.type], properties={"value": attribute})
    Rewriter.insert_op(constant, InsertPoint.before(op))
    return constant.results[0]


def _zero(type_: Attribute) -> Attribute | None:
    if isa(type_, IntegerType | IndexType):
        return IntegerAttr(0, type_)
    if isa(type_, AnyFloat):
        return FloatAttr(1.0, type_)
    return None


def _replaced(op: Operation, by_operand: int | None) -> bool:
    """Replace the results of an operation by one of its operands of the same type (else by constants), and erase it."""
    for result in op.results:
        same = [operand for operand in op.operands if operand.type == result.type]
        kept = same[by_operand : by_operand + 1] if by_operand is not None else [_simpler(result, op)]
        new = kept[0] if kept else None
        if new is None:
            return False
        result.replace_all_uses_with(new)
    Rewriter.erase_op(op)
    return True


def _groups(module: ModuleOp) -> Iterator[Edit]:
    """Replace groups of operations by constants: halves, quarters, .. of all."""
    count = len(_inner(module))
    size = count // 2
    while size > 1:
        for start in range(0, count, size):
            yield partial(_replace_group, start=start, size=size)
        size //= 2


def _replace_group(module: ModuleOp, start: int, size: int) -> bool:
    changed = False
    for op in _inner(module)[start : start + size]:
        if op.parent is not None:
            with suppress(ValueError):
                changed |= _replaced(op, 0) or _replaced(op, None)
    return changed


def _values(module: ModuleOp) -> Iterator[Edit]:
    """Replace each operation by each operand of its type, then by constants."""
    for number, op in enumerate(_inner(module)):
        for place in range(sum(operand.type == op.results[0].type for operand in op.operands) if op.results else 0):
            yield lambda m, n=number, p=place: _replaced(_inner(m)[n], p)
        yield lambda m, n=number: _replaced(_inner(m)[n], None)


def _branches(module: ModuleOp) -> Iterator[Edit]:
    """Replace each `scf.if` by one of its branches, and each `scf.for` by one step."""
    for number, op in enumerate(_inner(module)):
        if isinstance(op, scf.IfOp):
            for region in range(2):
                yield lambda m, n=number, r=region: _inline(_inner(m)[n], r)
        elif isinstance(op, scf.ForOp):
            yield lambda m, n=number: _inline(_inner(m)[n], 0)


def _inline(op: Operation, region: int) -> bool:
    if not op.regions[region].blocks:
        return False
    block = op.regions[region].block
    end = block.last_op
    assert end is not None, "a block ends in a terminator"
    values = list(end.operands)
    Rewriter.erase_op(end)
    arguments = [op.operands[0], *op.operands[3:]] if isinstance(op, scf.ForOp) else []
    Rewriter.inline_block(block, InsertPoint.before(op), arguments)
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    Rewriter.erase_op(op)
    return True


def _attributes(module: ModuleOp) -> Iterator[Edit]:
    """Drop each attribute that is not a property of its operation: all of one name, then one by one."""
    ops = list(module.walk())
    for name in dict.fromkeys(name for op in ops for name in op.attributes):
        yield partial(_drop_everywhere, name=name)
    for number, op in enumerate(ops):
        for name in op.attributes:
            yield lambda m, n=number, a=name: list(m.walk())[n].attributes.pop(a, None) is not None


def _drop_everywhere(module: ModuleOp, name: str) -> bool:
    return bool([op for op in module.walk() if op.attributes.pop(name, None) is not None])


_STEPS: Sequence[tuple[str, Callable[[ModuleOp], Iterator[Edit]]]] = (
    ("groups of operations are gone", _groups),
    ("branches and loops are inlined", _branches),
    ("values are operands or constants", _values),
    ("attributes are gone", _attributes),
)
