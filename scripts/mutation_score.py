"""Break kernels on purpose and count how many of the faults `hlo-run` finds with its default flags.

    python3 scripts/venv.py python scripts/mutation_score.py FOLDER... [--match RE] [--every N] [--kernels N] [--seed N]
                                                             [--fixed_bounds] [--report FILE.tsv]

A fault changes the PTX of one kernel, after the compilation, so it does not depend on what the emitters know:

    zero        every store to global memory stores zeros (atomic operations: their operand is zero)
    negate      every store flips the top bit of what it stores, the sign of a float (atomic operations too)
    skip last   the last store of every array that the kernel writes is left out

A module runs as `hlo-run FILE --platform=Host` does: same arguments, same comparison, same later tries. `found` are faults
that end with exit code 1, `stopped` those that end with another code, `missed` those that pass. A passing fault is
*equivalent*, and counts apart, if the result has the same bits as without the fault for every set of arguments tried: several
seeds, the draws of the later tries, and the whole range of exponents. The score is found and stopped by all but equivalent.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

import hlo_run
from hlo_run.artifact import Executable, KernelArgument, KernelThunk, Thunk, every_thunk
from hlo_run.backends import load_backend
from hlo_run.backends.grid import run_on_grid
from hlo_run.errors import HloRunError, Mismatch
from hlo_run.execution.arguments import OTHER_DRAWS, Arguments
from hlo_run.execution.console import Place, SilentConsole
from hlo_run.execution.iterations import Execution, Runner
from hlo_run.execution.results import FileResult
from hlo_run.hlo.values.literal import Literal
from hlo_run.hlo.wrap import wrap_bare_module
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module
from hlo_run.platforms import open_backend
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments, random_feeds
from hlo_run.target import preset

FAULTS = ("zero", "negate", "skip last")
FOUND, STOPPED, MISSED, EQUIVALENT, NO_STORE = "found", "stopped", "missed", "equivalent", "no store"
_STORE = re.compile(
    r"^(?P<guard>@!?%\w+\s+)?(?P<op>st(?:\.\w+)*\.global(?:\.\w+)*\.[bfsu](?P<bits>8|16|32|64))\s+"
    r"\[(?P<address>%\w+)(?P<offset>\+-?\d+)?\],\s*(?P<value>\{[^}]*\}|%\w+|-?\w+);$"
)
_ATOMIC = re.compile(
    r"^(?P<head>(?:@!?%\w+\s+)?(?:red|atom)(?:\.\w+)*\.global(?:\.\w+)*\.(?:add|exch|min|max|and|or|xor)(?:\.\w+)*"
    r"\.[bfsu](?P<bits>16|32|64)\s+(?:%\w+,\s*)?\[[^\]]+\],\s*)(?P<value>%\w+);$"
)
_REGISTER = {16: "%mutant_h", 32: "%mutant_r", 64: "%mutant_d"}
_LANES = 8


def mutate(ptx: str, fault: str, written: Sequence[tuple[int, int]], is_pred: bool = False) -> str | None:
    """Return the PTX of a kernel with a fault, or None if it has no such store.

    `written` are (parameter number, bytes) of the arrays that the kernel writes. `is_pred`: the bytes that it stores are truth
    values, of which the lowest bit is flipped.
    """
    lines, entry = ptx.splitlines(), re.search(r"\.entry\s+([\w$]+)\(", ptx)
    assert entry is not None, "a kernel has an entry"
    widths = {name: int(bits) for bits, name in re.findall(r"\.reg \.b(\d+)\s+(%[a-z]+)<", ptx)}
    out: list[str] = []
    count = 0
    for line in lines:
        text = line.strip()
        store, atomic = _STORE.match(text), _ATOMIC.match(text)
        if store is not None and fault == "skip last":
            out += _without_last(store, entry[1], written)
        elif store is not None:
            values = [value.strip() for value in store["value"].strip("{}").split(",")]
            changed, before = _changed(values, int(store["bits"]), fault, is_pred, widths)
            whole = "{" + ", ".join(changed) + "}" if store["value"].startswith("{") else changed[0]
            out += [*before, f"\t{text[: store.start('value')]}{whole};"]
        elif atomic is not None and fault != "skip last":
            changed, before = _changed([atomic["value"]], int(atomic["bits"]), fault, is_pred, widths)
            out += [*before, f"\t{atomic['head']}{changed[0]};"]
        else:
            out.append(line)
            continue
        count += 1
    if not count:
        return None
    body = out.index("{") + 1
    declared = [
        f"\t.reg .b{width} \t{name}<{_LANES}>;" for name, width in (("%mutant_h", 16), ("%mutant_r", 32), ("%mutant_d", 64))
    ]
    return "\n".join([*out[:body], *declared, f"\t.reg .pred \t%mutant_p<{2 * _LANES}>;", *out[body:], ""])


def _changed(
    values: Sequence[str], bits: int, fault: str, is_pred: bool, widths: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Return the registers to store in the place of `values`, and the instructions that fill them.

    `widths` are the bits of the registers by the letters of their names; a narrow store may take a wide register.
    """
    letters = re.match(r"%[a-z]+", values[0])
    width = widths.get(letters[0], max(bits, 16)) if letters else max(bits, 16)
    names = [f"{_REGISTER[width]}{lane}" for lane in range(len(values))]
    if fault == "zero":
        return names, [f"\tmov.b{width} \t{name}, 0;" for name in names]
    mask = 1 if bits == 8 and is_pred else 1 << (bits - 1)
    signed = mask - (1 << width) if mask >> (width - 1) else mask
    moves = [f"\tmov.b{width} \t{name}, {value};" for name, value in zip(names, values, strict=True)]
    return names, [*moves, *(f"\txor.b{width} \t{name}, {name}, {signed};" for name in names)]


def _without_last(store: re.Match[str], entry: str, written: Sequence[tuple[int, int]]) -> list[str]:
    """Return the instructions of a store that is left out where it would write the last element of an array."""
    lanes = store["value"].count(",") + 1
    width = int(store["bits"]) // 8 * lanes
    out = [
        "\tsetp.eq.b64 \t%mutant_p0, %mutant_d0, %mutant_d0;",
        f"\tadd.s64 \t%mutant_d1, {store['address']}, {(store['offset'] or '+0')[1:]};",
    ]
    for number, size in written:
        out += [
            f"\tld.param.b64 \t%mutant_d2, [{entry}_param_{number}];",
            f"\tadd.s64 \t%mutant_d3, %mutant_d2, {size - width};",
            "\tsetp.ne.b64 \t%mutant_p1, %mutant_d1, %mutant_d3;",
            "\tand.pred \t%mutant_p0, %mutant_p0, %mutant_p1;",
        ]
    guard = (store["guard"] or "").strip()
    if guard:
        name = guard.lstrip("@!")
        out += [
            f"\tnot.pred \t%mutant_p2, {name};",
            f"\tand.pred \t%mutant_p0, %mutant_p0, {'%mutant_p2' if '!' in guard else name};",
        ]
    out[0] = "\tmov.b64 \t%mutant_d0, 0;\n" + out[0]
    return [*out, f"\t@%mutant_p0 {store['op']} \t[{store['address']}{store['offset'] or ''}], {store['value']};"]


@dataclass(frozen=True)
class Outcome:
    """What became of one fault of one kernel."""

    file: str
    kernel: str
    fault: str
    verdict: str
    detail: str = ""


class Subject:
    """A module, compiled once, that runs with and without faults."""

    def __init__(self, file: Path, options: Options) -> None:
        self.options = options
        self.module = wrap_bare_module(hlo_run.parse(file.read_text(encoding="utf-8"), file.name))
        self.arguments = Arguments(options, self.module, [], Place(0, 1))
        optimized = self.module.clone()
        executable = compile_module(PassContext(preset("h100"), options.compile), optimized)
        # Host may sort with numpy in the place of kernels that sort, which would hide faults in them.
        self.executable = replace(executable, thunks=_without_sorts(executable.thunks))
        self._types = {i.name: [leaf.element_type for _, leaf in i.shape.leaves()] for i in optimized.instructions}
        self._known: list[tuple[list[Literal], Literal]] | None = None

    def thunk(self, kernel: str) -> KernelThunk | None:
        """Return the first launch of a kernel."""
        found = (t for t in every_thunk(self.executable.thunks) if isinstance(t, KernelThunk) and t.kernel == kernel)
        return next(found, None)

    def mutant(self, kernel: str, fault: str) -> Executable | None:
        """Return the executable with a fault in one kernel; None if the kernel has no store of this kind."""
        thunk = self.thunk(kernel)
        if thunk is None:
            return None
        ptx = mutate(self.executable.kernel(kernel).ptx, fault, written_of(thunk.arguments), self._stores_pred(thunk))
        if ptx is None:
            return None
        kernels = (replace(k, ptx=ptx) if k.name == kernel else k for k in self.executable.kernels)
        return replace(self.executable, kernels=tuple(kernels))

    def _stores_pred(self, thunk: KernelThunk) -> bool:
        types = set(self._types.get(thunk.name, ())) & {"pred", "s8", "u8"}
        return types == {"pred"}

    def verdict(self, executable: Executable) -> tuple[str, str]:
        """Return what a run with default flags says about an executable, and its message."""
        result = FileResult(self.module.name)
        arguments = Arguments(self.options, self.module, [], Place(0, 1))
        execution = Execution(self.options, SilentConsole(), self.module, arguments, Place(0, 1), result)
        try:
            execution.prepare()
            backend = open_backend("Host", self.options)
            runner = Runner(
                "Host",
                "",
                lambda values, seed, feeds: run_on_grid(backend, executable, values, arguments.grid, seed, feeds),
                lambda: backend.outfeed,
            )
            execution.run(runner, "Interpreter")
        except Mismatch as error:
            return FOUND, error.message
        except HloRunError as error:
            return STOPPED, error.message
        return MISSED, ""

    def is_equivalent(self, executable: Executable) -> bool:
        """True if the results have the bits of the executable without the fault for all sets of arguments."""
        if self._known is None:
            self._known = [(values, self._run(self.executable, values)) for values in self._argument_sets()]
        for values, known in self._known:
            try:
                if _bits(self._run(executable, values)) != _bits(known):
                    return False
            except HloRunError:
                return False
        return True

    def _argument_sets(self) -> Iterator[list[Literal]]:
        def made(make: Callable[[], list[Literal]]) -> list[Literal]:
            return self.arguments.grid.make_arguments(self.module, make)

        for seed in (1, 2, 3):
            yield made(lambda seed=seed: make_fake_arguments(self.module, seed))
        for draw in OTHER_DRAWS:
            yield made(lambda draw=draw: make_fake_arguments(self.module, 4, draw=draw))
        yield made(lambda: make_fake_arguments(self.module, 5, use_large_float_range=True))

    def _run(self, executable: Executable, values: list[Literal]) -> Literal:
        return run_on_grid(
            open_backend("Host", self.options), executable, values, self.arguments.grid, feeds=random_feeds(self.options.seed)
        )


def written_of(arguments: Sequence[KernelArgument]) -> list[tuple[int, int]]:
    """Return (parameter number, bytes) of the arrays that a kernel writes."""
    return [(number, argument.slice.size_bytes) for number, argument in enumerate(arguments) if argument.written]


def _without_sorts(thunks: Sequence[Thunk]) -> tuple[Thunk, ...]:
    return tuple(replace(thunk, sort=None) if isinstance(thunk, KernelThunk) else thunk for thunk in thunks)


def _bits(value: Literal) -> tuple[Any, ...]:
    if isinstance(value, tuple):
        return tuple(_bits(part) for part in value)
    return (np.asarray(value).shape, np.ascontiguousarray(value).tobytes())


def outcomes(file: Path, options: Options, kernels: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcomes of all faults in at most `kernels` kernels of a module, chosen by the seed."""
    subject = Subject(file, options)
    verdict, detail = subject.verdict(subject.executable)
    if verdict != MISSED:
        yield Outcome(file.name, "", "none", verdict, detail)
        return
    names = [kernel.name for kernel in subject.executable.kernels]
    for name in random.Random(f"{seed} {file.name}").sample(names, min(kernels, len(names))):
        for fault in FAULTS:
            executable = subject.mutant(name, fault)
            if executable is None:
                yield Outcome(file.name, name, fault, NO_STORE)
                continue
            verdict, detail = subject.verdict(executable)
            if verdict == MISSED and subject.is_equivalent(executable):
                verdict = EQUIVALENT
            yield Outcome(file.name, name, fault, verdict, detail)


def score(found: Sequence[Outcome]) -> float:
    """Return the share of faults, without the equivalent ones, that a run found or was stopped by."""
    counts = Counter(outcome.verdict for outcome in found)
    caught = counts[FOUND] + counts[STOPPED]
    return caught / max(1, caught + counts[MISSED])


def print_table(found: Sequence[Outcome]) -> None:
    """Print the counts per fault, in Markdown, and the faults that no run found."""
    print("\n| fault | faults | found | stopped | missed | score | equivalent |\n| --- | --- | --- | --- | --- | --- | --- |")
    for fault in (*FAULTS, "all"):
        some = [o for o in found if o.fault in (FAULTS if fault == "all" else (fault,)) and o.verdict != NO_STORE]
        counts = Counter(outcome.verdict for outcome in some)
        cells = (counts[FOUND], counts[STOPPED], counts[MISSED], f"{100 * score(some):.2f} %", counts[EQUIVALENT])
        print(f"| {fault} | {len(some) - counts[EQUIVALENT]} | " + " | ".join(map(str, cells)) + " |")
    for outcome in found:
        if outcome.verdict in (MISSED, EQUIVALENT) or outcome.fault == "none":
            print(f"{outcome.verdict}: {outcome.file} {outcome.kernel} ({outcome.fault}) {outcome.detail}")


def main() -> int:
    """Run the folders of the command line. Return 1 if a fault was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--match", default="", help="only files whose name matches this regular expression")
    parser.add_argument("--every", type=int, default=1, help="only every n-th file")
    parser.add_argument("--kernels", type=int, default=2, help="kernels per module, chosen by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one module")
    parser.add_argument("--fixed_bounds", action="store_true", help="compare by XLA's rule alone")
    parser.add_argument("--report", type=Path, help="write the outcomes as tab-separated values")
    arguments = parser.parse_args()
    load_backend("Host")  # before the processes fork
    options = Options(platform="Host", fixed_bounds=arguments.fixed_bounds, compile_processes=1, timeout=20.0)
    found: list[Outcome] = []
    for folder in arguments.folders:
        files = sorted(f for f in folder.glob("*.hlo") if re.search(arguments.match, f.name))
        for file in files[:: arguments.every]:
            some = _in_process(file, options, arguments)
            found += some
            counts = Counter(outcome.verdict for outcome in some)
            print(f"{folder.name}/{file.name}: " + ", ".join(f"{n} {what}" for what, n in counts.items()), flush=True)
            if arguments.report:
                lines = (f"{o.file}\t{o.kernel}\t{o.fault}\t{o.verdict}\t{' '.join(o.detail.split())}" for o in found)
                arguments.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print_table(found)
    return int(any(outcome.verdict == MISSED for outcome in found))


def _in_process(file: Path, options: Options, arguments: argparse.Namespace) -> list[Outcome]:
    """Run the faults of a module in a forked process. What a crash or a timeout leaves behind counts."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(file, options, arguments, send))
    process.start()
    send.close()
    found: list[Outcome] = []
    try:
        while receive.poll(arguments.timeout):
            found.append(receive.recv())
        process.kill()
    except EOFError:
        pass
    process.join()
    return found


def _child(file: Path, options: Options, arguments: argparse.Namespace, send: Connection) -> None:
    try:
        for outcome in outcomes(file, options, arguments.kernels, arguments.seed):
            send.send(outcome)
    except HloRunError as error:
        send.send(Outcome(file.name, "", "none", STOPPED, error.message))


if __name__ == "__main__":
    raise SystemExit(main())
