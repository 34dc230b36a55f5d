"""Compare how modules are divided between partitions with real XLA:GPU, and their values with those of the undivided modules.

    python3 scripts/venv.py python scripts/spmd_conformance.py FILE_OR_FOLDER.. [--shardy] [--seed 0] [--every N] [--keep DIR]
        [--stage partitioned|collectives|fusion|combined]
    python3 scripts/venv.py python scripts/spmd_conformance.py FILE_OR_FOLDER.. --rows ROWS.tsv [--shardy] [--again] [--limit 60]

A module of one partition gets the shardings that `hlo-fuzz --against=shardings` draws: one of six meshes and tiles of GSPMD, or
with --shardy axes of Shardy. A module of several partitions keeps its own. --keep holds each module with its shardings and
XLA's text, and a later run reads them again.
The script prints how many modules have XLA's text after a stage, whatever the names and channels, and how many have the values
of the undivided module there. The stages are the `after_spmd_partitioner` dump, the end of XLA's pipeline
`collective-optimizations`, the module before the fusion passes, and the one with combined collectives. Needs `hlo-run[xla-gpu]`.

With --rows every module gets shardings on each of the six meshes, and the script judges the values alone, small modules first,
without XLA. The file has one row per outcome, so that a run goes on where another one ended. With --xla_cpu it prints whether
XLA:CPU divides modules, as they are, with the right values.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import signal
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import numpy as np
from xla_cpu import XlaCpu, XlaError

import hlo_run
from hlo_run.backends.tiles import join_results, split_arguments
from hlo_run.cli import run
from hlo_run.errors import HloRunError
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, write_dumps
from hlo_run.fuzz.shardings import MESHES, DeviceMesh, shard
from hlo_run.hlo.fingerprint import module_fingerprint
from hlo_run.hlo.graph import HloModule
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.partition import partition
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Value
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

# All constants, and elements of tuples as instructions.
_PLAIN_TEXT = ("--xla_dump_large_constants", "--xla_dump_compact_gte=false")
# By stage: our `--stage`, and XLA's dump.
_STAGES = {
    "partitioned": ("after_spmd_partitioner", "*.after_spmd_partitioner.txt"),
    "collectives": ("while-loop-trip-count-annotator", "*.conv_canonicalization.after_pipeline-start.*.txt"),
    "fusion": ("rename-instructions", "*.fusion.after_pipeline-start.*.txt"),
    "combined": ("all-reduce-contiguous", "*.async-collective-conversion.after_pipeline-start.*.txt"),
}
_KINDS = ("agrees", "agrees in f32", "differs", "left out", "too slow")
# A draw may divide nothing.
_DRAWS = 8
# Sums are made in another order.
_TOLERANCE = 2e-2


def annotate(module: HloModule, name: str, seed: int, mesh: DeviceMesh | None, is_shardy: bool) -> bool:
    """Give the module partitions and random shardings, drawn by its name. Returns False if none divides anything."""
    return shard(module, zlib.crc32(name.encode()) + seed, mesh, is_shardy)


def write_texts_of_xla(text: str, file: Path) -> None:
    """Write XLA:GPU's module after each stage beside a file, or empty files if XLA does not compile it."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [*EMITTERS_ONLY, *_PLAIN_TEXT, "--xla_dump_hlo_as_text", "--xla_dump_hlo_pass_re=.*"]
        with contextlib.suppress(HloRunError):  # the first dumps are there even if a later step fails
            write_dumps(text, file.name, to_text_proto(preset(DEFAULT_TARGET)), flags, None, Path(folder), limit_seconds=200)
        for stage, (_, pattern) in _STAGES.items():
            found = sorted(Path(folder).glob(pattern))
            dumped_file(file, stage).write_text(found[0].read_text() if found else "")


def dumped_file(file: Path, stage: str) -> Path:
    """Return the file with XLA's module after a stage."""
    return file.with_suffix(f".{stage}.txt")


def our_text(file: Path, stage: str = "partitioned") -> str:
    """Return our module after a stage, or "" after an error."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run([str(file), f"--stage={_STAGES[stage][0]}", "--cache=off", *_PLAIN_TEXT])
    return "" if code else out.getvalue()


def has_same_text(ours: str, theirs: str) -> bool:
    """True if two texts have the same instructions, whatever the names, channels and metadata."""
    return len({_canonical(text) for text in (ours, theirs)}) == 1


def _canonical(text: str) -> str:
    module = hlo_run.parse(re.sub(r"channel_id=\d+", "channel_id=1", text), verified=False)
    for instruction in module.instructions:
        for name in ("metadata", "backend_config", "frontend_attributes"):
            instruction.attrs.pop(name, None)
    module.name = "module"
    module.attrs = {"num_partitions": module.attrs.get("num_partitions", 1)}
    return module_fingerprint(module)


def has_same_values(text: str, later: str = "") -> bool:
    """True if the devices' tiles of the result, joined, are the result of the undivided module.

    `later` is the text of the divided module after more passes, whose values are taken instead of those after the partitioner.
    """
    whole, module = (hlo_run.parse(text, verified=False) for _ in range(2))
    count = module.num_partitions
    arguments = make_fake_arguments(whole, RandomEngine(1))
    expected = Reference(whole).run([arguments] * count, 1, count, 42)[0]
    ctx = PassContext(preset(DEFAULT_TARGET), CompileOptions())
    partition(ctx, module)
    divided = module.divided
    if divided is None:
        return True
    module = hlo_run.parse(later, verified=False) if later else module
    results = Reference(module).run(split_arguments(divided, [arguments] * count, count), 1, count, 42)
    return all(_is_near(expected, result) for result in join_results(divided, results, count))


def _is_near(expected: Value, found: Value) -> bool:
    if isinstance(expected, tuple) and isinstance(found, tuple):
        return len(expected) == len(found) and all(_is_near(a, b) for a, b in zip(expected, found, strict=True))
    one, two = np.asarray(expected), np.asarray(found)
    if one.shape != two.shape:
        return False
    if one.dtype.kind in "iub":
        return bool(np.array_equal(one, two))
    one, two = one.astype(np.complex128), two.astype(np.complex128)
    most = float(np.max(np.abs(one[np.isfinite(one)]), initial=1e-9))
    return bool(np.allclose(one, two, rtol=_TOLERANCE, atol=_TOLERANCE * most, equal_nan=True))


def pairs_of(files: list[Path], options: argparse.Namespace, folder: Path) -> list[Path]:
    """Write each module with its shardings, and XLA's texts next to it; return the files of those that XLA compiles."""
    found: list[Path] = []
    for file in files:
        module = hlo_run.parse(file.read_text())
        if module.replica_count != 1:
            continue
        is_single = module.attrs.get("num_partitions", 1) == 1
        if is_single and not annotate(module, file.name, options.seed, None, options.shardy):
            continue
        target = folder / file.name
        if not dumped_file(target, options.stage).exists():
            target.write_text(module.to_string())
            write_texts_of_xla(target.read_text(), target)
        if dumped_file(target, options.stage).read_text():
            found.append(target)
        else:
            print(f"{file.name}: XLA refuses it", file=sys.stderr)
    return found


def compare_texts(files: list[Path], options: argparse.Namespace) -> None:
    """Compare all modules with XLA's, and print the counts."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        pairs = pairs_of(files, options, folder)
        texts, values = 0, 0
        for file in pairs:
            ours = our_text(file, options.stage)
            is_equal = bool(ours) and has_same_text(ours, dumped_file(file, options.stage).read_text())
            try:
                is_right = has_same_values(file.read_text(), "" if options.stage == "partitioned" else ours)
            except HloRunError as error:
                print(f"{file.name}: {error.message}", file=sys.stderr)
                is_right = False
            texts += is_equal
            values += is_right
            if not (is_equal and is_right):
                print(f"{file.name}: {'' if is_equal else 'another text '}{'' if is_right else 'other values'}")
    print(f"{texts} of {len(pairs)} modules have XLA's text, {values} the values of the undivided module")


def judge_xla_cpu(files: list[Path], command: str) -> None:
    """Print whether XLA:CPU, on as many virtual devices as partitions, has the values of each undivided module."""
    with XlaCpu(command) as xla:
        for file in files:
            module = hlo_run.parse(file.read_text(), verified=False)
            count = module.num_partitions
            arguments = make_fake_arguments(module, RandomEngine(1))
            expected = _leaves(Reference(module).run([arguments] * count, 1, count, 42)[0])
            inputs = [np.asarray(leaf) for argument in arguments for leaf in _leaves(argument)]
            try:
                results = xla.run(file.read_text(), inputs * count, grid=(1, count)).results
            except XlaError as error:
                print(f"{file.name}: {str(error).splitlines()[0]}")
                continue
            is_right = all(map(_is_near, expected * count, results))
            print(f"{file.name}: {'the values of the undivided module' if is_right else 'other values'}")


def _leaves(value: Value) -> list[Value]:
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def judge_values(text: str, name: str, seed: int, mesh: DeviceMesh, is_shardy: bool, limit: int) -> str:
    """Return "agrees", "differs", "left out" (no axis divides it, or its values depend on the device), "too slow" or an error."""
    try:
        draws = (hlo_run.parse(text) for _ in range(_DRAWS))
        divided = (module for n, module in enumerate(draws) if annotate(module, name, seed + n, mesh, is_shardy))
        module = next(divided, None)
        if module is None:
            return "left out"
        with _time_limit(limit):
            return _agreement(module.to_string())
    except TimeoutError:
        return "too slow"
    except HloRunError as error:
        return f"{type(error).__name__}: {error.message.splitlines()[0]}"


def _agreement(text: str) -> str:
    """Return "agrees" or "differs". Sums of 16-bit floats in another order may differ: the same module in f32 decides then."""
    if has_same_values(text):
        return "agrees"
    wide = re.sub(r"\b(bf16|f16)(?=\[)", "f32", text)
    return "agrees in f32" if wide != text and has_same_values(wide) else "differs"


@contextlib.contextmanager
def _time_limit(seconds: int) -> Generator[None]:
    """Raise TimeoutError in the block after some seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def run_on_all_meshes(files: list[Path], options: argparse.Namespace) -> None:
    """Judge the values of every module on all meshes, append a row each to --rows, and print the counts."""
    notation = "shardy" if options.shardy else "gspmd"
    options.rows.touch()
    rows = [line.split("\t") for line in options.rows.read_text().splitlines()]
    known = {tuple(row[:4]): row[4] for row in rows}
    counts: dict[str, Counter[str]] = {}
    for file in sorted(files, key=lambda file: file.stat().st_size):
        for mesh in MESHES:
            key = (str(file), str(mesh), notation, str(options.seed))
            outcome = known.get(key)
            if outcome is None or (options.again and outcome not in ("agrees", "agrees in f32", "left out", "too slow")):
                outcome = judge_values(file.read_text(), file.name, options.seed, mesh, options.shardy, options.limit)
                with options.rows.open("a") as rows_file:
                    rows_file.write("\t".join((*key, outcome)) + "\n")
            kind = outcome if outcome in _KINDS else "error"
            counts.setdefault(str(mesh), Counter())[kind] += 1
            if kind in ("differs", "error"):
                print(f"{file.name} on {mesh}: {outcome}", flush=True)
    for mesh, count in counts.items():
        print(f"{mesh}: " + ", ".join(f"{number} {kind}" for kind, number in count.most_common()))


def main() -> int:
    """Compare all modules and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the random shardings")
    parser.add_argument("--shardy", action="store_true", help="random shardings of Shardy")
    parser.add_argument("--keep", type=Path, help="a folder for the modules with their shardings, and XLA's texts")
    parser.add_argument("--stage", choices=sorted(_STAGES), default="partitioned", help="where the modules are compared")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth module only")
    parser.add_argument("--rows", type=Path, help="judge values alone on all meshes; a file that keeps the outcomes")
    parser.add_argument("--again", action="store_true", help="with --rows: judge again what failed")
    parser.add_argument("--limit", type=int, default=60, metavar="SECONDS", help="with --rows: for one module on one mesh")
    parser.add_argument(
        "--xla_cpu", metavar="COMMAND", help='"PYTHON RUN_CPU.py": judge the values of XLA:CPU, of the modules as they are'
    )
    options = parser.parse_args()
    files = [file for path in options.paths for file in (sorted(path.glob("*.hlo")) if path.is_dir() else [path])]
    files = files[:: options.every]
    if options.xla_cpu is not None:
        judge_xla_cpu(files, options.xla_cpu)
    elif options.rows is not None:
        run_on_all_meshes(files, options)
    else:
        compare_texts(files, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
