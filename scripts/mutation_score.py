"""Break kernels on purpose and count how many of the faults `hlo-run` finds with its default flags.

    python3 scripts/venv.py python scripts/mutation_score.py FOLDER... [--every N] [--kernels N] [--kinds N] [--seed N]

A fault changes the PTX of one kernel, after the compilation, so it does not depend on what the emitters know:

    zero           every store to global memory stores zeros (atomic operations: their operand is zero)
    negate         every store flips the top bit of what it stores, the sign of a float (atomic operations too)
    scale          every stored float is multiplied by 1.01
    skip last      the last store of every array that the kernel writes is left out
    last block     the last block of the grid does nothing
    swap           a difference, quotient or selection has its operands exchanged
    mul for add    a product in the place of a sum
    add for mul    a sum in the place of a product
    sign           a difference in the place of a sum or the reverse, a dropped negation, a product with the other sign
    min for max    a minimum in the place of a maximum, or the reverse
    lost max       one operand of a maximum or minimum in its place
    lost term      one term of a sum in its place
    accumulator    a loop-carried or summed value begins with another number
    stale shared   a store to shared memory or a barrier is left out
    next element   a load of the element after or before, where the array has one
    off by one     an index with a constant that is one off, or the element after or before in shared memory
    predicate      < for <=, a negated branch, "and" for "or"

The seed chooses the kernels of a module, the kinds of faults in a kernel, and their places. A fault is *equivalent*, and left
out, if the kernel alone, on four sets of random operands of its own, gives equal numbers, or floats of which each equals the
other one or is its neighbour in its type. Initial values of reductions are their identities there, as HLO demands. A fault is
*stopped*, and counts apart, if the kernel alone or the run ends with a device fault or a time-out. All others run as
`hlo-run FILE --platform=Host` does: same arguments, same comparison, same later tries. *Found* are those that end with exit
code 1, *missed* those that pass; *alone* those that the line of the kernels finds, *end to end* those that the comparison of
the module's result finds, by itself if need be. *Rounding* are the missed ones that change the kernel's results by at most one
unit of the last place of the largest number. *Hidden* are those that the comparison of the module's result misses, and that
leave this result as it is but for four units, on ten other sets of arguments: what follows undoes them, or never comes to
them. *Of visible* is the share of the others that this comparison finds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from mutation.alone import ROUNDINGS, ROUNDINGS_OF_MODULE
from mutation.faults import KINDS
from mutation.subject import ALONE, END_TO_END, EQUIVALENT, FOUND, HEADINGS, INVALID, MISSED, STOPPED, Outcome, outcomes

from hlo_run.backends import load_backend
from hlo_run.errors import HloRunError
from hlo_run.options import Options

_SHARES = ("found", "alone", "end to end", "of visible")
_COLUMNS = ("faults", *_SHARES, "missed", "rounding", "hidden", "stopped", "equivalent", "invalid")


def score(found: Sequence[Outcome], line: str = "") -> float:
    """Return the share of faults, without those that count apart, that a run found; with `line`, that this line of it found."""
    counted = [outcome for outcome in found if outcome.verdict in (FOUND, MISSED)]
    caught = sum(outcome.verdict == FOUND and line in outcome.lines for outcome in counted)
    return caught / max(1, len(counted))


def table(found: Sequence[Outcome]) -> str:
    """Return the counts per kind, in Markdown. `found`, `alone`, `end to end` and `of visible` are shares."""
    lines = [f"| kind | {' | '.join(_COLUMNS)} |", "| --- " * (len(_COLUMNS) + 1) + "|"]
    for kind in (*KINDS, "all"):
        some = [o for o in found if o.kind in (KINDS if kind == "all" else (kind,))]
        if not some:
            continue
        counts = Counter(outcome.verdict for outcome in some)
        rounding = sum(o.verdict == MISSED and o.units <= ROUNDINGS for o in some)
        hidden = [o for o in some if o.verdict in (FOUND, MISSED) and o.of_result <= ROUNDINGS_OF_MODULE]
        visible = [o for o in some if o not in hidden]
        scores = (*(score(some, line) for line in ("", ALONE, END_TO_END)), score(visible, END_TO_END))
        shares = (f"{100 * share:.1f} %" for share in scores)
        cells = (counts[FOUND] + counts[MISSED], *shares, counts[MISSED], rounding, len(hidden))
        apart = (counts[STOPPED], counts[EQUIVALENT], counts[INVALID])
        lines.append(f"| {kind} | " + " | ".join(map(str, (*cells, *apart))) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run the folders of the command line. Return 1 if a fault was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--match", default="", help="only files whose name matches this regular expression")
    parser.add_argument("--every", type=int, default=1, help="only every n-th file")
    parser.add_argument("--kernels", type=int, default=2, help="kernels per module, chosen by the seed")
    parser.add_argument("--kinds", type=int, default=2, help="kinds of faults per kernel, chosen by the seed")
    parser.add_argument("--only", default=",".join(KINDS), help="the kinds to choose from, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one fault")
    parser.add_argument("--fixed_bounds", action="store_true", help="compare by XLA's rule alone")
    parser.add_argument("--report", type=Path, help="write the outcomes as tab-separated values")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the kernels of missed faults, for --xla_gpu_ptx_file")
    arguments = parser.parse_args()
    if unknown := set(arguments.only.split(",")) - set(KINDS):
        parser.error(f"--only: no kind is called '{min(unknown)}'; the kinds are {', '.join(KINDS)}")
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
            if arguments.keep:
                _keep(arguments.keep, some)
            if arguments.report:
                text = "\n".join([HEADINGS, *(outcome.row() for outcome in found)])
                arguments.report.write_text(text + "\n", encoding="utf-8")
    print(f"\n{table(found)}")
    for outcome in found:
        if outcome.verdict == MISSED or outcome.kind == "none":
            print(f"{outcome.verdict}: {outcome.file} {outcome.kernel} ({outcome.kind}: {outcome.place}) {outcome.detail}")
    return int(any(outcome.verdict == MISSED for outcome in found))


def _keep(folder: Path, found: Sequence[Outcome]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in found:
        if outcome.ptx:
            line = re.sub(r"\W+", "_", outcome.place.partition(":")[0])
            name = f"{Path(outcome.file).stem}.{outcome.kernel}.{outcome.kind.replace(' ', '_')}.{line}.ptx"
            (folder / name).write_text(f"// {outcome.place}\n{outcome.ptx}", encoding="utf-8")


def _in_process(file: Path, options: Options, arguments: argparse.Namespace) -> list[Outcome]:
    """Run the faults of a module in a forked process. What was sent before a crash or a timeout counts."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(file, options, arguments, send))
    process.start()
    send.close()
    found: list[Outcome] = []
    problem = f"no outcome in {arguments.timeout:g} s"
    try:
        while receive.poll(arguments.timeout):
            found.append(receive.recv())
        process.kill()
    except EOFError:
        problem = ""
    process.join()
    if problem or process.exitcode:
        found.append(Outcome(file.name, "", "none", "", STOPPED, detail=problem or f"exit status {process.exitcode}"))
    return found


def _child(file: Path, options: Options, arguments: argparse.Namespace, send: Connection) -> None:
    try:
        only = arguments.only.split(",")
        for outcome in outcomes(file, options, arguments.kernels, arguments.kinds, arguments.seed, only):
            send.send(outcome)
    except HloRunError as error:
        send.send(Outcome(file.name, "", "none", "", STOPPED, detail=error.message))


if __name__ == "__main__":
    raise SystemExit(main())
