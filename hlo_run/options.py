"""Every flag, from one table: the fields of `Options`. Also reads `XLA_FLAGS`, flag files and command lines.

Precedence: command line > XLA_FLAGS > --debug_options_file > default. Spelling is XLA's: `--name=value`, booleans also
bare; dashes are accepted for underscores.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hlo_run.errors import UsageError


def _flag(
    default: Any, help_text: str, metavar: str = "", choices: tuple[str, ...] = (), section: str = "Run", bare: str = ""
) -> Any:
    """Return the field of a flag; `bare` is its value when it is written without one (booleans: true)."""
    meta = {"help": help_text, "metavar": metavar, "choices": choices, "section": section, "bare": bare}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True)
class Options:
    """The flags of one run; a field's name is the flag's name, its type and default are the flag's."""

    platform: str = _flag("", "CUDA, Host or Interpreter; empty: CUDA if a device can be opened, else Host.", "NAME")
    reference_platform: str = _flag("default", 'Platform to compare with: Interpreter, or "" for none.', "NAME")
    reference_precision: str = _flag(
        "native", "native: every op rounds to its type; f64: floats are float64 throughout.", "HOW", ("native", "f64")
    )
    num_replicas: int = _flag(0, "Replicas to simulate (0: as the module's header says).", "N")
    num_partitions: int = _flag(0, "Partitions to simulate (0: as the module's header says).", "N")
    input_format: str = _flag(
        "", "Format of the input; empty: by extension.", "hlo|txt|pb|pbtxt|textproto|stablehlo|mhlo|mlir|mlirbc"
    )
    iterations: int = _flag(1, "Run so many times, each with fresh arguments.", "N")
    seed: int = _flag(1, "Seed of the random arguments.", "N")
    different_random_seeds: bool = _flag(False, "The module's own seed is the iteration's number instead of 42.")
    inputs: str = _flag("", "Arguments: FILE.npz with arg0, arg1, .., or A.npy,B.npy,..; tuples as their leaves.", "FILES")
    infeed: str = _flag(
        "", "What infeeds take: infeed0, infeed1, .. of a file, in order, tuples as their leaves; else random.", "FILE.npz"
    )
    save_inputs: str = _flag("", "Write the arguments, for --inputs.", "FILE.npz")
    save_outputs: str = _flag("", "Write the result (out0, ..), and what was expected where it differs.", "FILE.npz")
    expected_output: str = _flag("", "Compare with a result saved by --save_outputs, not with the reference.", "FILE.npz")
    isolate_fusion: str = _flag(
        "", "Run one fusion of the module alone; write it and its operands as MODULE.NAME.hlo and .npz.", "NAME"
    )
    profile: str = _flag(
        "", "Time every thunk (stderr: time, bytes, GB/s); with a FILE, write a Chrome trace as well.", "FILE.json", bare="-"
    )
    custom_calls: str = _flag("", "Python files that register functions for custom calls.", "FILES.py")
    print_literals: bool = _flag(False, "Print arguments and results to stdout.")
    abs_error_bound: float = _flag(1e-3, "An element differs if both bounds are exceeded.", "X")
    rel_error_bound: float = _flag(1e-3, "An element differs if both bounds are exceeded.", "X")
    relaxed_nans: bool = _flag(False, "Where a NaN is expected anything will do.")
    fewer_infs_ok: bool = _flag(False, "Compare an infinity as the type's largest number where a number is expected.")
    low_precision_fp_error_spec: str = _flag("", "Results that are at most N numbers of TYPE apart agree.", "TYPE,N")
    report_json: str = _flag("", "Write what became of every file, in full (docs/report.md).", "FILE")
    report_junit: str = _flag("", "Write JUnit XML, a test case per file.", "FILE")
    random_init_input_literals: bool = _flag(True, "Random arguments; false: zeros, as XLA fills them.")
    use_large_float_range: bool = _flag(False, "Draw floats log-uniformly over the whole exponent range.")
    timeout: float = _flag(0.0, "Stop a run on the device after so many seconds (0: never).", "SECONDS")
    host_engine: str = _flag(
        "auto", "Host: emulator, jit, or auto: the JIT for long launches.", "NAME", ("auto", "emulator", "jit")
    )
    xla_gpu_deterministic_ops: bool = _flag(False, "Host: atomics on floats take effect in the order of the blocks.")
    host_check: str = _flag("", "Host: watch for bounds, align, barrier, init, race; statistics; all.", "CHECKS", bare="all")

    target: str = _flag(
        "",
        "GPU to compile for (default h100); a100, v100, h200, b200, ..; several for --stage=fusion-analysis.",
        "NAME",
        section="Compile",
    )
    xla_gpu_target_config_filename: str = _flag("", "Read the GPU from an XLA gpu_target_config.", "FILE", section="Compile")
    xla_gpu_cuda_data_dir: str = _flag("", "Where to look for ptxas and libdevice first.", "DIR", section="Compile")
    xla_backend_optimization_level: int = _flag(3, "LLVM optimisation level, 0 to 3.", "N", section="Compile")
    xla_allow_excess_precision: bool = _flag(
        True, "Keep floats in a wider type between conversions; false: round where the module says so.", section="Compile"
    )
    run_test_hlo_passes: bool = _flag(True, "false: the input is optimised already, run only required rows.", section="Compile")
    xla_disable_all_hlo_passes: bool = _flag(False, "Run only the rows marked required.", section="Compile")
    xla_disable_hlo_passes: str = _flag("", "Rows to leave out, comma separated (short: --disable).", "ROWS", section="Compile")
    xla_enable_hlo_passes_only: str = _flag("", "Run only these and required rows (short: --only).", "ROWS", section="Compile")
    xla_fuel: str = _flag(
        "", "How many rewrites passes may make (passes without rewrites to count: how many runs).", "PASS=N,..", section="Compile"
    )
    kernel_ir_file: str = _flag(
        "", "Dumps of kernel IR that replace kernels and go on from their row.", "FILES", section="Compile"
    )
    xla_gpu_llvm_ir_file: str = _flag("", "LLVM IR (.ll) that replaces the kernels it defines.", "FILES", section="Compile")
    xla_gpu_ptx_file: str = _flag("", "PTX that replaces the kernels it defines.", "FILES", section="Compile")
    xla_gpu_enable_command_buffer: str = _flag(
        "",
        "Record runs of thunks once, replay them: FUSION,CUBLAS,.. or +WHILE (added to XLA's).",
        "KINDS",
        section="Compile",
    )
    xla_gpu_graph_min_graph_size: int = _flag(5, "Shorter runs of thunks are not recorded.", "N", section="Compile")
    cache: str = _flag(
        "", "Where kernels are kept for later runs, or off (default: the user's cache directory).", "off|DIR", section="Compile"
    )
    compile_processes: int = _flag(0, "Processes that compile kernels (0: one per core).", "N", section="Compile")
    check_each_pass: bool = _flag(
        False, "Evaluate the module with the reference after every row that changed it.", section="Compile"
    )
    verify: str = _flag("ends", "Verify: at the ends, every row, off.", "WHEN", ("ends", "every", "off"), section="Compile")

    v: int = _flag(0, "0-5: rows, changes, HLO, fusion analysis, all kernel IR with LLVM and PTX (stderr).", "N", section="Show")
    stage: str = _flag(
        "", "Print one stage and stop: hlo-input, hlo, fusion-analysis, llvm, ptx, a row name, ..", "NAME", section="Show"
    )
    explain: str = _flag(
        "",
        "Say why instructions were fused or not, and stop: fusion, or fusion:NAME,.. for one, or a pair, of those before fusion.",
        "fusion[:NAMES]",
        section="Show",
    )
    xla_diff: str = _flag(
        "",
        "Compile, show kernels, fusions, bytes and memory beside real XLA:GPU's, and stop: emitters (no Triton; bare), default.",
        "MODE",
        section="Show",
        bare="emitters",
    )
    output_format: str = _flag(
        "hlo", "Format of --stage=hlo and hlo-input.", "NAME", ("hlo", "pb", "pbtxt", "stablehlo"), section="Show"
    )
    output: str = _flag(
        "", "Compile, save the executable, and do not run it; hlo-run FILE.hlox does.", "FILE.hlox", section="Compile"
    )
    output_machine_code: bool = _flag(
        False, "With --output: add machine code of the kernels for this processor, for Host.", section="Compile"
    )
    output_file: str = _flag("", "Write the stage to a file instead of stdout.", "FILE", section="Show")
    list_passes: bool = _flag(False, "List the rows of both pass tables and stop.", section="Show")
    time_passes: bool = _flag(False, "Print the seconds of every row at the end (stderr).", section="Show")
    print_locations: bool = _flag(False, "Print the HLO instruction (hlo.op) each kernel op came from.", section="Show")
    print_ir_generic: bool = _flag(False, "Print kernel IR in MLIR's generic form.", section="Show")
    xla_dump_to: str = _flag("", "Directory for dumps; - prints them to stdout.", "DIR", section="Show")
    xla_dump_hlo_pass_re: str = _flag("", "Dump the HLO around rows that match; .* dumps every change.", "RE", section="Show")
    xla_dump_hlo_module_re: str = _flag("", "Dump only modules whose name matches.", "RE", section="Show")
    xla_dump_emitter_re: str = _flag("", "Dump kernels: mlir-fusion, llvm, ptx.", "RE", section="Show")
    xla_dump_large_constants: bool = _flag(False, "Print constants of more than 10 elements in full.", section="Show")
    xla_dump_disable_metadata: bool = _flag(False, "Leave metadata out of HLO dumps.", section="Show")
    xla_dump_hlo_as_long_text: bool = _flag(True, "Print HLO with signatures and % before names.", section="Show")
    xla_dump_compact_gte: bool = _flag(True, "Print %t#0 for get-tuple-element.", section="Show")
    xla_syntax_sugar_async_ops: bool = _flag(False, "Print add-start for the async-start of an add.", section="Show")

    debug_options_file: str = _flag("", "Text proto of XLA debug options; flags win over it.", "FILE", section="Flags")
    strict_flags: bool = _flag(False, "An unknown --xla_* flag is an error instead of a warning.", section="Flags")

    @property
    def disabled_rows(self) -> tuple[str, ...]:
        return _names(self.xla_disable_hlo_passes)

    @property
    def only_rows(self) -> tuple[str, ...]:
        return _names(self.xla_enable_hlo_passes_only)

    @property
    def fuel_limits(self) -> tuple[str, ...]:
        return _names(self.xla_fuel)

    @property
    def required_rows_only(self) -> bool:
        """True if only rows marked required shall run."""
        return self.xla_disable_all_hlo_passes or not self.run_test_hlo_passes


@dataclass(frozen=True, slots=True)
class OptFlags:
    """The flags that `hlo-opt` has beside those that steer compilation and its dumps, named as in XLA's tool."""

    platform: str = _flag("transforms", "transforms: no GPU's pipeline, the module as read; gpu (or CUDA).", "NAME")
    passes: str = _flag(
        "", "Run these passes in this order, and nothing else; cse-4 is the fourth row of cse in the table.", "PASSES"
    )
    split_input_file: bool = _flag(False, "Read modules separated by lines `// -----`, each on its own.")
    emit_proto: bool = _flag(False, "Print the module as a text proto, without passes.")
    list_passes: bool = _flag(False, "Print the names of the passes.")
    list_stages: bool = _flag(False, "Print the names of the platform's stages.")


FieldTable: TypeAlias = "Mapping[str, dataclasses.Field[Any]]"


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of a program by name, and other spellings of some of them."""

    fields: FieldTable
    short_names: Mapping[str, str]


FIELDS: dict[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Options)}
_SHORT_NAMES = {"only": "xla_enable_hlo_passes_only", "disable": "xla_disable_hlo_passes", "o": "output_file"}
FLAGS = Flags(FIELDS, _SHORT_NAMES)
OWN_OPT_FLAGS = tuple(f.name for f in dataclasses.fields(OptFlags))
_RUNS_ONLY = frozenset(
    """output output_format kernel_ir_file compile_processes xla_diff explain run_test_hlo_passes list_passes
    check_each_pass""".split()
)
# What `hlo-opt` knows: nothing that is about running a module.
OPT_FLAGS = Flags(
    {
        **{f.name: f for f in dataclasses.fields(OptFlags)},
        "input_format": FIELDS["input_format"],
        **{name: f for name, f in FIELDS.items() if f.metadata["section"] != "Run" and name not in _RUNS_ONLY},
    },
    {**_SHORT_NAMES, "format": "input_format"},
)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class RawFlags:
    """Flags as texts by field name, before their types are checked: those of the command line and, weaker, all others.

    `files` are in order; `warnings` go to stderr.
    """

    given: dict[str, str]
    defaults: dict[str, str]
    files: tuple[str, ...]
    warnings: tuple[str, ...]


def read_flags(arguments: Iterable[str], environment: Mapping[str, str], flags: Flags = FLAGS) -> RawFlags:
    """Read `flags` from `arguments` (without the program's name), `XLA_FLAGS` and the flag file.

    Everything that does not begin with `-` is a file, `-` alone is stdin, `--` ends the flags. Raises UsageError.
    """
    given: dict[str, str] = {}
    unknown: list[str] = []
    files = _split(arguments, given, unknown, flags)
    from_environment: dict[str, str] = {}
    _split(_xla_flags(environment.get("XLA_FLAGS", "")), from_environment, unknown, flags)
    path = given.get("debug_options_file", from_environment.get("debug_options_file", ""))
    from_file = _debug_options(path, unknown, flags) if path else {}
    defaults = from_file | from_environment
    distinct = list(dict.fromkeys(unknown))
    if distinct and given.get("strict_flags", defaults.get("strict_flags", "false")).lower() in ("true", "1"):
        raise UsageError(f"unknown flag --{distinct[0]}", hint=_did_you_mean(distinct[0], flags))
    warnings = (f"unknown XLA flags have no effect: {', '.join('--' + name for name in distinct)}",) if distinct else ()
    return RawFlags(given, defaults, tuple(files), warnings)


def _split(tokens: Iterable[str], values: dict[str, str], unknown: list[str], flags: Flags) -> list[str]:
    """Sort tokens into flag values (by field name), unknown xla flags, and files, which are returned."""
    files: list[str] = []
    pending = list(tokens)
    while pending:
        token = pending.pop(0)
        if token == "--":
            return files + pending
        if not token.startswith("-") or token == "-":
            files.append(token)
            continue
        name, equals, text = token.lstrip("-").partition("=")
        name = name.replace("-", "_")
        name = flags.short_names.get(name, name)
        if name in flags.fields:
            bare = "true" if flags.fields[name].type == "bool" else flags.fields[name].metadata["bare"]
            if not equals and not bare:
                raise UsageError(f"--{name} needs a value", hint=f"write --{name}=VALUE")
            values[name] = text if equals else bare
        elif name.startswith("xla_"):
            unknown.append(name)
        else:
            raise UsageError(f"unknown flag {token}", hint=_did_you_mean(name, flags))
    return files


def _did_you_mean(name: str, flags: Flags) -> str:
    close = difflib.get_close_matches(name, (*flags.fields, *flags.short_names), n=1)
    return f"did you mean --{close[0]}?" if close else "--help lists every flag"


def _xla_flags(text: str) -> list[str]:
    """Split `XLA_FLAGS`: flags at blanks, or, when it does not begin with `-`, the name of a file that holds them."""
    if text.strip() and not text.lstrip().startswith("-"):
        text = read_text(text.strip(), "XLA_FLAGS names a file that")
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"XLA_FLAGS: {error}") from None
    # XLA stops at the first token that is no flag.
    end = next((i for i, token in enumerate(tokens) if not token.startswith("-")), len(tokens))
    return tokens[:end]


_PROTO_LINE = re.compile(r'([a-z_0-9]+)\s*:\s*("(?:[^"\\]|\\.)*"|[^\s#]+)')


def _debug_options(path: str, unknown: list[str], flags: Flags) -> dict[str, str]:
    """Read the `name: value` lines of a DebugOptions text proto."""
    text = re.sub(r"(?m)^\s*#.*$", "", read_text(path, "--debug_options_file"))
    values: dict[str, str] = {}
    for name, value in _PROTO_LINE.findall(text):
        if name in flags.fields:
            values[name] = value.strip('"')
        else:
            unknown.append(name)
    return values


def read_text(path: str, what: str) -> str:
    """Return the text of a UTF-8 file; raises UsageError that begins with `what`."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{what} '{path}' cannot be read: {os.strerror(error.errno or 0)}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{what} '{path}' is not a text file") from None
