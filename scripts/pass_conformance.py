"""Count the cases of XLA's own pass tests that come out as XLA's tests want them, and the reasons of the others.

    python3 scripts/venv.py python scripts/pass_conformance.py CASES [--pass NAME,..] [--rows OUT.tsv] [--released ROWS.tsv]

CASES is a folder as `pass_meaning.py` takes it, with what each test expects: FileCheck patterns (`CASE.check`) and matchers
of the root (`CASE.match`, one JSON value per line). `changed` says whether the last pass changes the module. Options that a
pass's constructor gets are handed over (`OPTIONS`). Cases that set others, edit the module or hand over a function are left
out. Patterns are compared with three texts: as printed, with `VALUE#NUMBER` for elements of tuples, and without shapes. The
output is Markdown. `REASONS` names why a case may differ; what begins with `open` is work to do. With the rows of
`released_passes.py`, cases in which released XLA's pass makes the same module as ours count apart.
"""

from __future__ import annotations

import argparse
import collections
import csv
import fnmatch
import io
import json
import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser

import hlo_run
from hlo_run.cli import run_opt
from hlo_run.errors import HloRunError
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.print_options import DUMP
from hlo_run.ops.verify import READING, verify
from hlo_run.pipeline.asked_passes import split_passes
from hlo_run.records import replace

_Row = dict[str, str]

# The options of a pass by position in XLA's constructor.
OPTIONS = {
    "AllReduceBlueConnect": ("devices_per_host",),
    "ConditionalCodeMotion": ("sees_layouts", "moves_converts"),
    "CallInliner": ("single_call_site",),
    "HloConstantSplitter": ("split_expressions",),
    "HloComputationDeduplicator": ("marks_fusions",),
    "DotDimensionNormalizer": ("normalize_noncontracting_dimensions",),
    "InstructionHoister": ("hoists_parameters", "hoists_constants", "hoists_bitcasts", "hoists_elements"),
    "WhileLoopConcatCodeMotion": ("min_operand_count",),
    "WhileLoopConstantSinking": ("sink_broadcast_of_constants", "sink_only_scalar_constants"),
    "WhileLoopFusibleSinking": ("sink_broadcast_of_constant",),
    "WhileLoopInvariantCodeMotion": ("hoist_constants", "hoist_reshapes", "hoist_size_inflation_ratio"),
    "WhileLoopUnroller": ("unroll_factor", "wrap_in_trivial_loop"),
}
_STRATEGIES = {"kAuto": "auto", "kFullUnroll": "full", "kDoubleBuffer": "double_buffer", "kManual": "manual"}
# The versions of cuDNN that tests of block-scaling-rewriter name: the second is that which XLA is built with.
_CUDNN = {"kCudnnSupportsBlockScaledDot": "9.10", "kCudnnVersion": "9.14"}
# What the fixtures of tests set, as flags.
FLAGS = {
    "reduce_window_rewriter_test.cc": ("--xla_reduce_window_rewrite_base_length=128",),
    "gemm_broadcast_folding_rewriter_test.cc": ("--xla_gpu_gemm_rewrite_size_threshold=0",),
    "gemm_rewriter_test.cc": ("--xla_gpu_gemm_rewrite_size_threshold=0",),
}
# Of the tests of recognize-reduce-window: the level at which they expect a rewrite, if it is not 1. A second case of a test runs
# at the level below.
_LEVELS = {
    2: (
        "SubtractSlices*",
        "FlattenAndSort*",
        "WeightedSlices*",
        "DotChain*",
        "*_NoFactor*",
        "TwoSlicesWith*",
        "PreventPattern3*",
    ),
    3: ("Heterogeneous*", "ArrayWeight*", "UniversalDot*", "DotOfDotMWE", "DotOfDotMWE2"),
}
# Of the tests of call-splitter: the opcodes that their functions look for.
_BORDERS = {
    "multiply+subtract": "SplitDownMultipleInstructions*",
    "multiply": "SplitDown*",
    "negate": "SplitUpMultiple*",
    "add": "SplitUp*",
    "and": "ClearCache",
}
# What tests write into the header of their module before the pass runs, by test or case.
_HEADERS = {
    "all-reduce-blueconnect/TwoStage": "replica_count=16",
    "all-reduce-blueconnect/DifferentNumLocalDevicesAcross*": "replica_count=16",
    "all-reduce-blueconnect/*": "replica_count=8",
    "DontCombinePipelinedAndSynchronousCollectives": 'frontend_attributes={suggested_combiner_threshold="10000000000"}',
    "CombinesPipelinedCollectivesUpToSuggestedThreshold": 'frontend_attributes={suggested_combiner_threshold="49152"}',
    "CombinesSynchronousCollectivesUpToSuggestedThreshold": 'frontend_attributes={suggested_combiner_threshold="10000000000"}',
}
# Their constants have 16 million elements.
_LARGE = ("ConditionalGTEWithFusion",)
_LEVELS_FILE = "recognize_reduce_window_test.cc"
# The reason of a case in which released XLA's pass makes the same module as ours (`released_passes.py`).
_AS_RELEASED = "released XLA gives the same result: the test is newer, or sets options that XLA:GPU does not set"
# Why other cases differ: (reason, patterns of cases). The first that matches counts.
REASONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("the test expects an error, and gets one", ("call-outliner/Error*",)),
    (
        "an option of the pass that XLA:GPU does not set, or a condition that the case does not carry",
        (
            *("batchnorm_expander/DisabledFlags*", "call-inliner/PreserveComposite*", "call-*/ReusedComputationName*"),
            *("reshape-mover/ReshapeOfRank1*", "topk-specializer/Preserves*", "sharding-propagation/ShardingMetadata*"),
            "gather_expander/EliminateSimple*",
            *(
                "reduce-window-rewriter/OptimizeR1*",
                "change-op-data-type/SimpleWithCloner",
                "constant_folding/FoldWhile",
                "rng-expander/ReplacesRngWithGet*",
                "*-perf-table-stats-collection/*",
            ),
        ),
    ),
    (
        "`copy-insertion`: buffers `b(f32[16])` are refused, and transfers that go on in the next iteration get no copies",
        ("copy-insertion/NonCopyable*", "copy-insertion/PartiallyPipelined*"),
    ),
    (
        "`copy-insertion`: fusions of several results that kernels here cannot change in place get other buffers",
        ("copy-insertion/MultiOutput*",),
    ),
    ("execution threads other than the main one", ("*ExecutionThread*", "*Async*")),
    ("`origin` is read and printed, not derived", ("*Original*", "algsimp/AlgebraicSimplifierReshape*")),
    (
        "no step without effect is made, which XLA's next pass removes",
        (
            *("dot_decomposer/*", "algsimp/ElementwiseSink*", "associative-scan-rewriter/*"),
            *("reduction-degenerate-dim-remover/*", "bitcast_dtypes_expander/*", "layout_normalization/ConstantAvoid*"),
        ),
    ),
    (
        "arrays of less than a byte per element, of dynamic sizes, or of pred whose bytes would be read",
        ("algsimp/Imag*", "algsimp/ReduceBroadcastOfScalar_2", "algsimp/SimplifyBitcast*", "tuple-simplifier/DynamicOutput*"),
    ),
    (
        "a module that the verifier refuses, as XLA's does",
        (
            *("sort-rewriter/NoRewriteLarge*", "while-loop-constant-sinking/DontCreate*"),
            "latency-hiding-scheduler-preparation/*Pipelined*",
        ),
    ),
    ("XLA reports no change, but writes estimates into the module", ("*gpu?cost?model?stats?collection/*",)),
    ("`windowed-einsum-handler`: counters of unrolled loops, where XLA's are wrong", ("windowed-einsum-handler/*",)),
    (
        "a bitcast of tuples or to another number of bytes, which the verifier refuses",
        ("instruction-hoister/DefaultDisabled", "bfloat16-propagation/Bitcast*", "multi_output_fusion/SkipsDynamicSlice*"),
    ),
    ("the tuning of a cost model, for which a pass has no option", ("conditional-code-motion/Test*Configuration*",)),
    ("Triton's fusions, and annotations of streams", ("priority-fusion/*",)),
    ("computations are printed in another order or under another name", ("while-loop-*Shared*", "*SharedCallee*")),
    (
        "convolutions whose result would wrap around or be cut where cuDNN's does not",
        ("cudnn-fused-convolution-rewriter/Remove*",),
    ),
    (
        "`layout_normalization`: scatters of several arrays keep their layout, and so do reversals between layouts that differ "
        "in sizes of 1",
        ("layout_normalization/VariadicScatter", "layout_normalization/Reverse*"),
    ),
    (
        "`dot-strength-reduction` and `algsimp`: results of f8, whose factors would be rounded to f8, and algorithms of several "
        "parts, which become one product of more precise factors",
        ("dot-strength-reduction/*", "algsimp/DotToMultiply*_X[36]_*"),
    ),
    (
        "`collective-combiner-annotator`: as released XLA, it leaves modules of one host alone",
        ("collective-combiner-annotator/*",),
    ),
    (
        "convolutions with a `convolution_kind`, which become fusions of cuDNN",
        ("conv-padding-legalization/*",),
    ),
    (
        "slices of arrays in the memory of the host",
        ("stream-attribute-annotator/Dynamic*",),
    ),
    (
        "`while-loop-all-reduce-code-motion`: an all-reduce of a scatter into the state sums what the scatter leaves, too, in "
        "every iteration: moved, it would change values",
        ("while-loop-all-reduce-code-motion/Scatter*",),
    ),
    (
        "XLA reports a change that its text does not show",
        ("computation-deduplicator/DeduplicateChain", "sharding-propagation/DoNotPropagate*"),
    ),
    ("rows after the last group of a ragged batch are zero here; XLA multiplies them", ("ragged_dot_rewriter/*",)),
    ("our kernels cannot do stable sorts, so such a sort is not fused", ("sort-iota-fusion/*",)),
    ("a condition of the test: ROCm", ("layout-assignment/*ROCm*",)),
    (
        "`layout-assignment`: tests of the pass of all platforms, with layouts of parameters and results that XLA:GPU changes",
        ("layout-assignment/*",),
    ),
    ("as in released XLA, a gather of a scalar becomes a broadcast in `gather_expander` only", ("gather_simplifier/*",)),
    (
        "`multi_output_fusion`: reductions stay alone whose dimensions an earlier pass groups",
        ("multi_output_fusion/*", "copy_fusion/*"),
    ),
)


def fits(value: HloInstruction, wanted: dict[str, Any]) -> bool:
    """Return True if the instruction fits XLA's matcher."""
    if not wanted:
        return True
    if "any" in wanted:
        return any(fits(value, one) for one in wanted["any"])
    opcode = wanted.get("op", "*")
    if opcode == "!constant":
        return value.opcode != "constant"
    if opcode not in ("*", "count") and value.opcode != opcode:
        return False
    if "shape" in wanted and value.shape.is_array and [value.shape.element_type, list(value.shape.dims)] != list(wanted["shape"]):
        return False
    for place, inner in wanted.get("at", {}).items():
        if int(place) >= len(value.operands) or not fits(value.operands[int(place)], inner):
            return False
    inner = wanted.get("ops")
    if inner is None:
        return True
    have = list(value.operands)
    if len(have) < len(inner):
        return False
    ways = [have, have[::-1]] if wanted.get("anyorder") and len(inner) == 2 else [have]
    return any(all(fits(a, b) for a, b in zip(way, inner, strict=False)) for way in ways)


def with_options(row: _Row) -> str:
    """Return the passes of a case, with the options that XLA's constructors get."""
    names, made = row["passes"].split(","), row["options"].split(" | ")
    if names == ["despecializer", "despecializer"]:
        return "despecializer{deconstructs_reduce_window=true}"  # the test adds that part to the pass
    if len(names) != len(made):
        return row["passes"]
    return ",".join(_asked(row, name, text) for name, text in zip(names, made, strict=True))


def _asked(row: _Row, name: str, made: str) -> str:
    kind, _, rest = made.partition("(")
    given = [part.strip() for part in rest.rstrip(")").split(",")]
    pairs = [f"{o}={a}" for o, a in zip(OPTIONS.get(kind, ()), given, strict=False) if re.fullmatch(r"true|false|[\d.]+", a)]
    pairs += [f"unroll_strategy={_STRATEGIES[a]}" for a in given if a in _STRATEGIES]
    pairs += ["aggressive=true"] if "kAggressive" in given else []
    pairs += ["every=true"] if given[0] in ("kEliminateAllGathers", "kEliminateAllScatters") else []
    pairs += ["trip_count_threshold=0"] if "trip_count_threshold=0" in made else []
    if fnmatch.fnmatch(row["case"], "algsimp/SimplifyBitcastConvert*Bitwidth") and row["changed"] == "true":
        pairs.append("sees_layouts=true")  # the test sets it in a record of options
    if made.startswith("CallSplitter"):
        opcodes = next(names for names, tests in _BORDERS.items() if fnmatch.fnmatch(row["test"], tests))
        pairs += [f"boundary={opcodes}", f"direction={'up' if 'kUp' in given else 'down'}"]
    if made == "WhileLoopExpensiveInvariantCodeMotion(HloPredicateIsOp)":
        pairs.append("opcodes=dot+reduce" if "NonInflating" in row["test"] else "opcodes=dot")
    if made.startswith("ChangeOpDataType") and "cloner" not in made:
        pairs.append("types=f16:f32" + ("+u16:u32" if "U16" in made else ""))
        pairs += ["opcodes=dot+convolution"] if "HloPredicateIsOp" in made else []
    if made == "AsyncWrapper(HloPredicateIsOp)":
        pairs.append("targets=*")  # the tests wrap any custom call
    if made == "HloElementTypeConverter(BF16,F32)":
        pairs += ["eliminate=bf16", "replace_with=f32"]
    if made.startswith("BFloat16Propagation(&bfloat16_support"):
        pairs.append("mixes_all=true")  # the class of the test
    if kind == "ShardingPropagation":
        pairs += [
            f"{o}={a.replace(',', '+')}"
            for o, a in zip(("to_output", "to_parameters"), re.findall(r"{(.*?)}", made), strict=False)
        ]
    if re.match(r"Gpu\w+Combiner\(\d", made):
        pairs.append(f"default_bytes={given[0]}")
    if kind == "ConvolutionGroupConverter":
        # The tests of batch groups have a model that finds nothing viable, the others one that finds everything so.
        pairs += ["batch_groups=true"] if given[2] == "true" else ["is_viable=true"]
        pairs += ["expands_filter=false"] if given[3:] == ["false"] else []
    if made == "ReduceDecomposer()":
        pairs.append("keeps_fast=false")  # XLA:GPU hands over a function that keeps them
    if kind == "BlockScalingRewriter" and (version := _CUDNN.get(given[0])):
        pairs.append(f"cudnn={version}")
    if row["file"].endswith("/scan_rewriter_test.cc"):
        pairs.append("takes_any_start=true")  # the tests are those of the newer pass
    if row["file"].endswith("/sort_rewriter_test.cc") and not re.search("Heuristic|NoRewriteSmall", row["test"]):
        pairs.append("always=true")  # the test's fixture sets the mode
    return name + ("{" + ",".join(pairs) + "}" if pairs else "")


def flags_of(row: _Row) -> tuple[str, ...]:
    """Return the flags that the fixture of the case's test sets, and the threshold of a combiner of collectives."""
    if Path(row["file"]).name == _LEVELS_FILE:
        level = next((n for n, tests in _LEVELS.items() if any(fnmatch.fnmatch(row["test"], t) for t in tests)), 1)
        return (f"--xla_recognize_reduction_optimization_level={level - row['case'].endswith('_2')}",)
    flags = FLAGS.get(Path(row["file"]).name, ())
    if "A2a" in row["test"]:
        flags = (*flags, "--xla_gpu_experimental_enable_alltoall_windowed_einsum=true")  # the test's own configuration
    if found := re.search(r"Gpu(\w+)Combiner\(\w+,(\d+)", row["options"]):
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", found[1]).lower()
        flags = (*flags, f"--xla_gpu_{kind}_combine_threshold_bytes={found[2]}")
    if found := re.search(r"RaggedAllToAllMultiHostDecomposer\((\d+)", row["options"]):
        flags = (*flags, f"--xla_gpu_unsupported_override_fast_interconnect_slice_size={found[1]}")
    return flags


def optimized(file: str, passes: str, compact: bool = False, more: Sequence[str] = ()) -> tuple[int, str]:
    """Return the exit code and what hlo-opt prints; `more` are further flags."""
    out = io.StringIO()
    constants = f"--xla_dump_large_constants={str(Path(file).stem not in _LARGE).lower()}"
    flags = [*more, f"--passes={passes}", constants, f"--xla_dump_compact_gte={str(compact).lower()}", file]
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        code = run_opt(flags)
    return code, out.getvalue()


def _matches(text: str, path: Path) -> bool:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        options = Options(match_filename=str(path), check_prefixes=["CHECK"])
        matcher = Matcher(options, FInput("-", text), Parser.from_opts(options))
        matcher.stderr = io.StringIO()  # pyright: ignore[reportAttributeAccessIssue] - it prints what differs
        return matcher.run() == 0


def _without_shapes(text: str) -> str:
    return re.sub(r" = (?:\((?:[^()]|\([^()]*\))*\)|[a-z]\w*\[[^ ]*) ([a-z][\w-]*\()", r" = \1", text)


def judge(cases: Path, row: _Row) -> str:
    """Return agree, missed, extra, differs, refused, invalid or crash."""
    file = f"{cases / row['case']}.hlo"
    header = next(
        (text for name, text in _HEADERS.items() if fnmatch.fnmatch(row["case" if "/" in name else "test"], name)), None
    )
    if header is None:
        return _judge(cases, row, file)
    with tempfile.TemporaryDirectory() as folder:
        edited = Path(folder, "module.hlo")
        text = Path(file).read_text(encoding="utf-8")
        edited.write_text(re.sub(r"(?m)^( *HloModule .*)$", rf"\1, {header}", text, count=1), encoding="utf-8")
        return _judge(cases, row, str(edited))


def _judge(cases: Path, row: _Row, file: str) -> str:
    passes, more = with_options(row), flags_of(row)
    code, after = optimized(file, passes, more=more)
    if code:
        return "crash" if code == 70 else "refused"
    earlier = ",".join(split_passes(passes)[:-1])
    before = (
        optimized(file, earlier, more=more)[1] if earlier and row["changed"] != "?" else Path(file).read_text(encoding="utf-8")
    )
    return expected(cases, row, before, after, optimized(file, passes, compact=True, more=more)[1])


def expected(cases: Path, row: _Row, before: str, after: str, *others: str) -> str:
    """Return agree, missed, extra, differs or invalid for a module after the passes; `others` are other prints of it."""
    base = cases / row["case"]
    try:
        module = hlo_run.parse(after, verified=False)
        verify(module, replace(READING, windows=False))
        moved = module.to_string(DUMP) != hlo_run.parse(before, verified=False).to_string(DUMP)
    except HloRunError:
        return "invalid"
    if row["changed"] != "?" and moved != (row["changed"] == "true"):
        return "extra" if moved else "missed"
    texts = (after, _without_shapes(after), re.sub(r"/\*index=\d+\*/", "", _without_shapes(after)), *others)
    for path in base.parent.glob(f"{base.name}.check*") if row["changed"] != "false" else ():
        if any(_matches(text, path) for text in texts) == path.name.endswith(".not"):
            return "differs"
    matchers = Path(f"{base}.match")
    for line in matchers.read_text(encoding="utf-8").splitlines() if matchers.exists() else ():
        wanted = json.loads(line)
        found = sum(i.opcode == wanted.get("count") for i in module.instructions)
        if found != wanted["n"] if "count" in wanted else not fits(module.entry.root, wanted):
            return "differs"
    return "agree"


def is_plain(row: _Row) -> bool:
    """Return True for a case that the passes here can be asked about: with no options but constructor arguments, not edited."""
    notes = row["notes"]
    return (
        row["ours"] == "yes"
        and " set_" not in row["options"]
        and "lambda" not in row["options"]
        and (not re.search("edited|config", notes) or _has_known_flags(row))
    )


def _has_known_flags(row: _Row) -> bool:
    """Return True for a case whose test sets flags in its own configuration, but such that `flags_of` returns."""
    return (Path(row["file"]).name == _LEVELS_FILE and row["notes"] == "config given") or "A2a" in row["test"]


def _equal_cases(rows: Path) -> set[str]:
    """Return the cases in which ours and released XLA's pass make the same module."""
    fields = (line.split("\t") for line in rows.read_text(encoding="utf-8").splitlines())
    return {case for case, found, *_ in fields if found == "equal"}


def _reason(case: str, as_released: set[str]) -> str:
    if case in as_released:
        return _AS_RELEASED
    return next((text for text, patterns in REASONS if any(fnmatch.fnmatch(case, p) for p in patterns)), "open: other")


def main() -> int:
    """Run the command line; the exit code is 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument(
        "--pass", dest="names", default="", metavar="NAMES", help="only the cases of these passes, comma separated"
    )
    parser.add_argument("--rows", type=Path, help="write a line for each case")
    parser.add_argument("--released", type=Path, metavar="ROWS.tsv", help="the rows that released_passes.py wrote")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    with (args.cases / "index.tsv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if is_plain(row)]
    chosen = {name for name in str(args.names).split(",") if name}
    rows = [row for row in rows if not chosen or row["pass"] in chosen]
    with ProcessPoolExecutor(args.jobs) as pool:
        found = list(pool.map(partial(judge, args.cases), rows, chunksize=8))
    if args.rows:
        text = "".join(sorted(f"{row['case']}\t{what}\n" for row, what in zip(rows, found, strict=True)))
        args.rows.write_text(text, encoding="utf-8")
    as_released = _equal_cases(args.released) if args.released else set[str]()
    others = [row["case"] for row, what in zip(rows, found, strict=True) if what != "agree"]
    reasons = collections.Counter(_reason(case, as_released) for case in others)
    print(f"{found.count('agree')} of {len(found)} cases agree with XLA's tests.\n\n| the others | cases |\n| --- | ---: |")
    for reason, count in sorted(reasons.items(), key=lambda item: (item[0].startswith("open"), -item[1])):
        print(f"| {reason} | {count} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
