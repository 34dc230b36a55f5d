"""Compare the order of instructions and the thunks of modules with collectives with those of real XLA:GPU.

    python3 scripts/venv.py python scripts/async_conformance.py FILE_OR_FOLDER... [--cache DIR] [--show NAME]

XLA compiles every module for its partitions or replicas of an H100, without Triton; the cache keeps its dumps. The table says for
how many modules with collectives

- the schedule of XLA's own module before scheduling is XLA's, by names ("scheduling alone"),
- the scheduled ENTRY of our compilation is XLA's: the same instructions in the same order, whatever the names,
- the thunk sequence is XLA's: kinds, numbers, neighbours, streams and asynchronous pairs, whatever the names of kernels.

Needs `hlo-run[xla-gpu]`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

from hlo_run.cli import run
from hlo_run.errors import HloRunError
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, write_dumps
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.text.parser import parse_module
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.table import BACKEND_PIPELINE
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

_PLAIN_ELEMENTS = "--xla_dump_compact_gte=false"
_UNSCHEDULED = "*.pre-scheduling-passes.after_pipeline-start.*.txt"
_SCHEDULED = "*.scheduled-gpu-module.after_pipeline-start.*.txt"
_OPTIMIZED = "*gpu_after_optimizations.txt"
_THUNKS = "*.thunk_sequence.txt"
_COLLECTIVE = re.compile(r" (?:all-[\w-]+|reduce-scatter|collective-\w+|ragged-all-to-all)(?:-start)?\(")
_SCHEDULING_ROWS = ("schedule", "legalize-scheduling-annotations", "latency-hiding-scheduler")
_NAME = re.compile(r"%[\w.\-$]+")
_ATTRIBUTES = re.compile(r", (?:metadata|backend_config|frontend_attributes|sharding|channel_id|control-predecessors)=.*$")
_KERNEL = re.compile(r"(?<=\] )\S+ (?=grid: )")
_WIDTHS = re.compile(r" +")


def xla_dumps(file: Path, folder: Path) -> Path | None:
    """Return the folder with XLA's dumps of a module; None if XLA refuses it."""
    dumps = folder / file.stem
    if not dumps.exists():
        dumps.mkdir(parents=True)
        flags = [*EMITTERS_ONLY, "--xla_dump_hlo_as_text", "--xla_dump_hlo_pass_re=.*", _PLAIN_ELEMENTS]
        try:
            write_dumps(file.read_text(), file.name, to_text_proto(preset(DEFAULT_TARGET)), flags, None, dumps, 300)
        except HloRunError as error:
            print(f"{file.name}: {error.message}", file=sys.stderr)
    return dumps if list(dumps.glob(_THUNKS)) and list(dumps.glob(_SCHEDULED)) else None


def _read(folder: Path, pattern: str) -> str:
    return next(folder.glob(pattern)).read_text()


def _orders(module: HloModule) -> dict[str, list[str]]:
    return {c.name: [i.name for i in order] for c, order in (module.schedule or {}).items()}


def schedules_alike(before: str, after: str) -> bool:
    """True if our scheduling rows give XLA's unscheduled module XLA's schedule."""
    module = parse_module(before)
    ctx = PassContext(preset(DEFAULT_TARGET), CompileOptions())
    for group in BACKEND_PIPELINE:
        for _, row in group.all_rows():
            if row.name in _SCHEDULING_ROWS:
                row.make(ctx).apply(ctx, module)
    ours = _orders(module)
    return all(ours.get(name) == order for name, order in _orders(parse_module(after)).items())


def canonical_entry(text: str) -> list[str]:
    """Return the lines of ENTRY with numbers for names, without attributes that do not matter for the order."""
    lines = [line for line in text[text.index("\nENTRY ") :].splitlines()[2:] if line.strip()]
    numbers: dict[str, str] = {}
    return [
        _NAME.sub(lambda found: numbers.setdefault(found[0], f"%{len(numbers)}"), _ATTRIBUTES.sub("", line)) for line in lines
    ]


def canonical_thunks(text: str) -> list[str]:
    """Return the lines of a thunk sequence without the names of kernels and without padding."""
    return [_WIDTHS.sub(" ", _KERNEL.sub("", line)).replace(" ]", "]") for line in text.splitlines()]


def our_texts(file: Path) -> tuple[str, str]:
    """Return our scheduled module and our thunk sequence; empty after an error."""
    texts: list[str] = []
    for stage in ("hlo", "thunks"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = run([str(file), f"--stage={stage}", "--cache=off", "--compile_processes=1", _PLAIN_ELEMENTS])
        texts.append("" if code else out.getvalue())
    return texts[0], texts[1]


def main() -> int:
    """Print the table and the names of the modules that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, help="a folder for XLA's dumps")
    parser.add_argument("--show", help="print both thunk sequences and both entries of this module")
    arguments = parser.parse_args()
    files = [file for path in arguments.paths for file in (sorted(path.glob("*.hlo")) if path.is_dir() else [path])]
    counts: dict[str, int] = dict.fromkeys(("modules", "scheduling alone", "ENTRY", "thunk sequence"), 0)
    with tempfile.TemporaryDirectory() as temporary:
        for file in files:
            if arguments.show not in (None, file.stem):
                continue
            dumps = xla_dumps(file, arguments.cache or Path(temporary))
            if dumps is None or not _COLLECTIVE.search(_read(dumps, _SCHEDULED)):
                continue
            scheduled, thunks = _read(dumps, _SCHEDULED), _read(dumps, _THUNKS)
            ours = our_texts(file)
            alike = {
                "modules": True,
                "scheduling alone": schedules_alike(_read(dumps, _UNSCHEDULED), scheduled),
                "ENTRY": bool(ours[0]) and canonical_entry(ours[0]) == canonical_entry(_read(dumps, _OPTIMIZED)),
                "thunk sequence": bool(ours[1]) and canonical_thunks(ours[1]) == canonical_thunks(thunks),
            }
            for name, is_alike in alike.items():
                counts[name] += is_alike
            if not all(alike.values()):
                print(f"{file.stem}: another {', '.join(name for name, is_alike in alike.items() if not is_alike)}")
            if arguments.show is not None:
                print(thunks, ours[1], _read(dumps, _OPTIMIZED), ours[0], sep="\n----\n")
    print("".join(f"\n| {name} | {count} |" for name, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
