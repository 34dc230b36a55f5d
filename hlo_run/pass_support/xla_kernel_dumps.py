"""Reads real XLA's dumps of a kernel: its log of all kernel passes, or one dump of such a log.

    any(func.func(xla-simplify-arith{..}),canonicalize{..},..)
    // -----// IR Dump Before CSEPass: cse ('builtin.module' operation: @wrapped_add_kernel_module) //----- //
    module @wrapped_add_kernel_module ..

The first line of a log is its pipeline. A dump continues after the row of ours that is the last that XLA has surely run: XLA runs
two passes on one function after the other, so that before the second pass other functions have not seen the first. Rows that run
again change nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.errors import ParseError, UsageError, Where

_HEADER = re.compile(
    r"^// -----// IR Dump Before (?P<title>\w+): (?P<name>[\w-]+)(?P<options>\{[^}]*\})? "
    r"\('(?P<op>[\w.]+)' operation(?:: @(?P<symbol>[\w.$-]+))?\) //----- //$",
    re.MULTILINE,
)
_BEGINNINGS = ("any(", "builtin.module(", "// -----// IR Dump Before ")
_ENTRY = re.compile(r"(?:func\.func|llvm\.func) @(?P<name>[\w.$-]+)\([^\n]*\bxla\.entry\b")
_UNROLL = re.compile(r"max_unroll_factor=(\d+)")
_DEFAULT_UNROLL = 4
_EMIT = "emit-kernels"

# XLA's pass -> our last row before it, for IR on tensors and for IR on pointers (None: the pass runs on one of the two).
_ROWS: dict[str, tuple[str | None, str | None]] = {
    "xla-simplify-arith": (_EMIT, "cse-5"),
    "canonicalize": ("simplify-arith", "merge-pointers-to-same-slice"),
    "cse": ("canonicalize", "canonicalize-5"),
    "xla-erase-dead-functions": ("cse", None),
    "xla-gpu-lower-xla-shared": ("erase-dead-functions", None),
    "xla-lower-xla-to-scf": ("erase-dead-functions", None),
    "inline": ("lower-xla-to-scf", None),
    "xla-gpu-peel-loops": ("cse-2", None),
    "xla-lower-xla-loops-to-scf": ("cse-2", None),
    "stablehlo-convert-to-signless": ("lower-xla-gpu-to-scf", None),
    "xla-propagate-slice-indices": ("lower-xla-gpu-to-scf", None),
    "xla-flatten-tensors": ("propagate-slice-indices", None),
    "loop-invariant-code-motion": ("cse-3", "convert-index-type"),
    "xla-unswitch-loops": ("loop-invariant-code-motion", None),
    "xla-vectorize-loads-stores": ("loop-invariant-code-motion-2", None),
    "xla-gpu-optimize-loops": ("loop-invariant-code-motion-2", None),
    "xla-gpu-insert-pdl": ("cse-4", None),
    "xla-convert-pure-call-ops": ("insert-pdl", None),
    "xla-lower-tensors": ("convert-pure-call-ops", None),
    "xla-lower-pdl-wait": (None, "lower-tensors"),
    "convert-complex-to-standard": (None, "lower-pdl-wait"),
    "xla-merge-pointers": (None, "convert-complex-to-standard"),
    "xla-simplify-affine": (None, "simplify-arith-3"),
    "xla-gpu-convert-index-type": (None, "simplify-affine"),
    "lower-affine": (None, "convert-index-type"),
    "symbol-dce": (None, "loop-invariant-code-motion-3"),
    "xla-gpu-convert-float-nvidia": (None, "cse-6"),
    "xla-expand-float-ops": (None, "convert-float-nvidia"),
    "convert-scf-to-cf": (None, "expand-float-ops"),
    "xla-lower-to-llvm-gpu": (None, "scf-to-cf"),
    "reconcile-unrealized-casts": (None, "lower-to-llvm-gpu"),
}


class XlaDump(Struct, frozen=True):
    """A dump of a kernel by XLA: our row after which it continues, its text without a header, and its surroundings.

    `launch` and `unroll_factor` are those of the kernel, `module` is the common prefix of the names of the dump's folder, or "".
    """

    kernel: str
    text: str
    row: str
    launch: LaunchDimensions
    unroll_factor: int
    module: str


def is_xla_dump(beginning: str) -> bool:
    """Tell whether a file with this beginning is a log or a dump of XLA's kernel passes."""
    return beginning.lstrip().startswith(_BEGINNINGS)


def read_xla_dump(text: str, path: str, before: str = "", launch: str = "") -> XlaDump:
    """Return one dump of a text, which is from the file `path`: the first, or the first before XLA's pass `before`.

    `launch` are the launch dimensions as the user gives them (`16x1x1,128x1x1`, or ""). Otherwise they are read from XLA's
    `thunk_sequence.txt` beside the file, or from the ids in the text. Raises ParseError for a text that is no dump of a kernel,
    UsageError for a pass that the text does not have and for launch dimensions that are not known.
    """
    headers = [*_HEADER.finditer(text)]
    if not headers:
        raise ParseError("the file has no dump of a kernel pass", Where(path, 1, 1))
    chosen = next((header for header in headers if before in ("", header["name"], header["title"])), None)
    if chosen is None:
        names = ", ".join(dict.fromkeys(header["name"] for header in headers))
        raise UsageError(f"'{path}' has no dump before the pass '{before}'", hint=f"it has {names}")
    end = next((header.start() for header in headers if header.start() > chosen.start()), len(text))
    # The lines before the dump stay as empty lines, so that messages have the line of the file.
    body = "\n" * text.count("\n", 0, chosen.end()) + text[chosen.end() : end]
    entry = _ENTRY.search(body)
    if entry is None:
        raise ParseError("the dump has no function with the attribute xla.entry", Where(path, body.count("\n", 0, 1), 1))
    kernel, module = entry["name"], _module_of(path, entry["name"])
    unroll = _UNROLL.search(text)
    return XlaDump(
        kernel,
        body,
        _row(chosen, body, path, text),
        _given(launch) or _beside(path, module, kernel) or _from_ids(text[headers[0].end() :], path),
        int(unroll[1]) if unroll else _DEFAULT_UNROLL,
        module,
    )


def _row(header: re.Match[str], body: str, path: str, text: str) -> str:
    rows = _ROWS.get(header["name"])
    on_pointers = "!llvm.ptr" in body
    row = None if rows is None else rows[on_pointers] or rows[not on_pointers]
    if row is None:
        line = text.count("\n", 0, header.start()) + 1
        raise ParseError(f"XLA's pass '{header['name']}' has no row in the kernel pass table", Where(path, line, 1, header[0]))
    return row


def _module_of(path: str, kernel: str) -> str:
    """Return `module_0000.NAME` of a file `module_0000.NAME.KERNEL.*`, or "" for other names."""
    prefix, found, _ = Path(path).name.partition(f".{kernel}.")
    return prefix if found else ""


def optimized_module(path: str, module: str) -> Path | None:
    """Return XLA's file of the optimised module in the folder of a dump, or None."""
    return next(iter(sorted(Path(path).parent.glob(f"{module}.*gpu_after_optimizations.txt"))), None) if module else None


def _beside(path: str, module: str, kernel: str) -> LaunchDimensions | None:
    file = Path(path).parent / f"{module}.thunk_sequence.txt"
    if not module or not file.is_file():
        return None
    sizes = r"\[(\d+), (\d+), (\d+)\]"
    line = re.compile(rf" {re.escape(kernel)} grid: {sizes} threads: {sizes}")
    found = line.search(file.read_text(encoding="utf-8", errors="replace"))
    return None if found is None else _dimensions(map(int, found.groups()))


def _given(launch: str) -> LaunchDimensions | None:
    if not launch:
        return None
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+),(\d+)x(\d+)x(\d+)", launch)
    if found is None:
        raise UsageError(f"'{launch}' is not a launch", hint="a launch is GRID,BLOCK, as in 16x1x1,128x1x1")
    return _dimensions(map(int, found.groups()))


def _dimensions(sizes: map[int]) -> LaunchDimensions:
    gx, gy, gz, bx, by, bz = sizes
    return LaunchDimensions((gx, gy, gz), (bx, by, bz))


_GRID_ID = re.compile(r"(?:xla\.workgroup_id|gpu\.block_id) +([xyz]) \{xla\.range = \[0 : index, (\d+) : index\]\}")
_THREAD_ID = re.compile(r"gpu\.thread_id +([xyz]) \{xla\.range = \[0 : index, (\d+) : index\]\}")
_THREADS = re.compile(r"scf\.forall \([^)]*\) in \((\d+), (\d+), (\d+)\)")


def _from_ids(text: str, path: str) -> LaunchDimensions:
    """Return the launch of which the intervals of the ids speak; an axis without an id has one block or thread."""
    grid = {axis: int(last) + 1 for axis, last in _GRID_ID.findall(text)}
    block = {axis: int(last) + 1 for axis, last in _THREAD_ID.findall(text)}
    if threads := _THREADS.search(text):
        block = dict(zip("xyz", map(int, threads.groups()), strict=True))
    if not grid and not block:
        hint = "give it with --kernel_launch=GRID,BLOCK (16x1x1,128x1x1), or keep XLA's thunk_sequence.txt beside the file"
        raise UsageError(f"'{path}' does not show the launch dimensions of its kernel", hint=hint)
    return _dimensions(map(int, [*(grid.get(axis, 1) for axis in "xyz"), *(block.get(axis, 1) for axis in "xyz")]))
