"""Finds flags that have no effect: every flag names the uses of a command line in which it acts.

A flag acts if the command line has all the uses that its field names (`acts`), or its record's if it names none. Flags that
XLA shares (`--xla_*`) are never refused, since scripts pass them to every tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from hlo_run.options import Options
from hlo_run.options.compile import CompileOptions
from hlo_run.options.flag_files import FlagOptions
from hlo_run.options.modes import MODES, Kind
from hlo_run.options.run import RunOptions
from hlo_run.options.show import ShowOptions

# The modes that run nothing, in the order in which they are looked at.
_MODES = ("list_passes", *(mode.flag for mode in MODES if mode.kind != Kind.REPLAY))
# The modes that run the module in another way than once and whole, and the flags that have no effect then.
_REPLAYS = tuple(mode.flag for mode in MODES if mode.kind == Kind.REPLAY)
NOT_REPLAYED = frozenset(
    """iterations different_random_seeds save_outputs expected_output reference_platform reference_precision
    run_reference_hlo_passes output_literals_file num_repeats
    dump_output_literal_to profile_execution append_profile_to_csv_file log_output profile output_mode
    print_literals host_check fail_on_vacuous check_kernels check_each_pass num_replicas num_partitions""".split()
)
_FIRST_TEXT_LEVEL = 3
FIRST_RETURNED = "return_device_0_outputs"
"""The value of `--output_mode` with which only the result of device 0 is compared and written."""
NOT_RETURNED = "not_return_outputs"
"""The value of `--output_mode` with which results are neither compared nor written."""
_RECORD_ACTS = {RunOptions: "run", CompileOptions: "compile", ShowOptions: "compile", FlagOptions: ""}


def without_effect(options: Options, files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the flags that differ from their defaults and have no effect, each with the reason as the end of a sentence."""
    missing = _missing_uses(options, files)
    for record, own in _RECORD_ACTS.items():
        for field in fields(record):
            if getattr(options, field.name) == field.default or _is_shared_with_xla(field.name):
                continue
            acts: str = own if field.metadata["acts"] is None else field.metadata["acts"]
            if use := next((use for use in acts.split() if use in missing), ""):
                yield field.name, missing[use]
    replay = next((name for name in _REPLAYS if getattr(options, name)), "")
    for field in fields(Options) if replay else ():
        if field.name in NOT_REPLAYED and getattr(options, field.name) != field.default:
            yield field.name, f"with --{replay}, which runs once on Host beside the reference"


def _is_shared_with_xla(name: str) -> bool:
    return name.startswith("xla_") and name != "xla_diff"


def _missing_uses(options: Options, files: Sequence[str]) -> dict[str, str]:
    """Return the uses that a command line lacks, each with the reason as the end of a sentence."""
    missing: dict[str, str] = {}
    mode = next((name for name in _MODES if getattr(options, name)), "")
    if mode:
        missing["run"] = f"with --{mode}, which does not run the module"
        if not options.check_each_pass and not options.isolate_fusion:
            missing["arguments"] = missing["run"]
        if mode != "golden_dir":
            missing["page"] = missing["run"]
    if mode == "list_passes":
        missing["file"] = "with --list_passes, which reads no file"
        missing["compile"] = "with --list_passes, which does not compile"
    elif not mode:
        _add_missing_in_run(missing, options, files)
    if options.inputs:
        missing["random"] = "with --inputs, which gives the arguments"
    elif "arguments" in missing:
        missing["random"] = missing["arguments"]
    if "run" in missing:
        missing.update(
            comparison=missing["run"], reference=missing["run"], passes=missing["run"], device=missing["run"], host=missing["run"]
        )
    _add_missing_in_arguments(missing, options)
    if options.use_large_float_range:
        missing["range"] = "with --use_large_float_range, which has its own range"
    if not options.random_init_input_literals:
        missing["range"] = missing["mode"] = "with --random_init_input_literals=false, which makes zeros"
    if not mode and "host" in missing:
        missing["checks"] = missing["host"]
    if files and not any(file.endswith((".mlir", ".log")) for file in files):
        missing["mlir"] = f"on '{files[0]}', which is not a module of the gpu dialect (.mlir)"
    if not (options.stage or options.dumps_to or options.v or options.golden_dir):
        missing["text"] = "without --stage, --xla_dump_to or --v, which print the text"
    if options.one_process:
        missing["processes"] = "with --one_process"
    if not options.dumps_to:
        missing["dump"] = "without --xla_dump_to"
    if not options.profile_execution:
        missing["times"] = "without --profile_execution, which measures"
    if not options.localize:
        missing["localize"] = "without --localize"
    if not options.golden_dir:
        missing["golden"] = "without --golden_dir"
    if options.v < _FIRST_TEXT_LEVEL:
        missing["log"] = f"without --v={_FIRST_TEXT_LEVEL} or more, which prints texts"
    if not options.output:
        missing["output"] = "without --output"
    return missing


def _add_missing_in_arguments(missing: dict[str, str], options: Options) -> None:
    """Add what flags of arguments lack."""
    mode = options.hlo_argument_mode
    if mode not in ("use_random_inputs", "use_shared_random_inputs"):
        missing["range"] = f"with --hlo_argument_mode={mode}, which has its own numbers"


def _add_missing_in_run(missing: dict[str, str], options: Options, files: Sequence[str]) -> None:
    """Add what a command line lacks that runs modules."""
    platform = options.platform.lower()
    if platform == "interpreter":
        missing["device"] = missing["host"] = "with --platform=Interpreter, which runs no kernels"
        if not options.isolate_fusion:
            missing["compile"] = "with --platform=Interpreter, which does not compile"
    elif platform in ("cuda", "gpu"):
        missing["host"] = f"with --platform={options.platform}"
    if files and all(file.endswith(".hlox") for file in files):
        missing["compile"] = f"on '{files[0]}', which is compiled already"
    reference = options.reference_platform.lower()
    if options.expected_output or reference in ("", "default", "interpreter"):
        missing["passes"] = "without --reference_platform=CUDA or Host, which compile the module"
    elif reference == "cpu":
        missing["passes"] = "with --reference_platform=CPU, which gets the module without layouts, so that XLA's passes must run"
    if reference not in ("", "default", "interpreter"):
        missing["reference"] = f"with --reference_platform={options.reference_platform}, which computes in the module's types"
    if options.output_mode == NOT_RETURNED:
        reason = f"with --output_mode={NOT_RETURNED}, which leaves the result on the device"
        missing.update(returned=reason, comparison=reason, reference=reason, choice=reason, passes=reason)
        return
    if options.expected_output:
        missing["reference"] = missing["choice"] = "with --expected_output, which gives the expected result"
    elif not options.reference_platform:
        missing["comparison"] = missing["reference"] = "without a comparison (--reference_platform is empty)"
