"""XLA's DebugOptions: the table, and the flags of it that are not options of hlo-run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hlo_run.cli import parse_arguments
from hlo_run.errors import UsageError
from hlo_run.options.debug_options import DebugOption, debug_options, differing
from hlo_run.options.programs import FIELDS
from hlo_run.pipeline.observers.config_texts import debug_options_text

_TYPES = {"bool": "bool", "int32": "int", "int64": "int", "float": "float"}
# XLA's default is a folder beside its own binary.
_OTHER_DEFAULT = {"xla_gpu_cuda_data_dir"}


@pytest.fixture(autouse=True)
def no_flags_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def _others(*arguments: str) -> dict[str, str]:
    return dict(parse_arguments([*arguments, "x.hlo"])[0].other_xla_flags)


def test_the_table_has_the_fields_of_released_xla_and_of_the_one_before() -> None:
    table = debug_options()
    assert sum(option.number > 0 for option in table.values()) == 349
    assert len(table) > 340
    assert {option.verdict for option in table.values()} == {"acts", "accepted", "refused"}
    assert {option.source for option in table.values()} == {"released", "dropped"}


def test_every_default_is_a_value_of_its_type() -> None:
    for option in debug_options().values():
        assert option.normal(option.default) == option.default, option.name


def test_flags_that_act_are_options_with_xlas_type_and_default() -> None:
    own = {name for name in FIELDS if name.startswith("xla_")} - {"xla_diff", "xla_arguments"}
    assert own == {option.name for option in debug_options().values() if option.verdict == "acts"}
    for name in sorted(own - _OTHER_DEFAULT):
        option, field = debug_options()[name], FIELDS[name]
        assert field.type == _TYPES.get(option.type, "str"), name
        assert option.normal(str(field.default)) == option.default, name


def test_every_other_flag_gives_a_reason() -> None:
    for option in debug_options().values():
        assert (option.verdict == "acts") != bool(option.reason), option.name
        assert option.verdict == "acts" or option.reason.endswith("."), option.name


def _read(option: DebugOption, value: str) -> str:
    try:
        return option.normal(value)
    except ValueError:
        return "refused"


def test_values_are_read_as_released_xla_reads_them() -> None:
    differing_values: list[tuple[str, str, str, str]] = []
    for line in (Path(__file__).parent.parent / "data" / "xla_flag_values.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        name, value, result = line.split("\t")
        option = debug_options()[name]
        ours = _read(option, value)
        if option.type == "float" and "refused" not in (ours, result):
            ours, result = (f"{np.float32(text):.9g}" for text in (ours, result))
        # XLA's message has the ranges in another form. Flag files have the proto's names, also those of newer XLA.
        is_more = (option.type == "ranges" and not result and ours == value) or (result == "refused" and value in option.choices)
        if ours != result and not is_more:
            differing_values.append((name, value, result, ours))
    assert not differing_values


def test_text_protos_have_numbers_of_enums_and_other_spellings(tmp_path: Path) -> None:
    file = tmp_path / "flags.pbtxt"
    file.write_text(
        "xla_gpu_detect_nan: 1 xla_gpu_enable_command_buffer: [1, CUDNN] xla_gpu_ftz: t xla_gpu_dot_merger_threshold_mb: 0x20"
    )
    options = parse_arguments([f"--debug_options_file={file}", "x.hlo"])[0]
    assert (options.nan_check, options.xla_gpu_enable_command_buffer) == ("WARNING", "FUSION,CUDNN")
    assert (options.xla_gpu_ftz, options.xla_gpu_dot_merger_threshold_mb) == (True, 32)


@pytest.mark.parametrize("flag", ["xla_gpu_ftz=yes", "xla_gpu_graph_min_graph_size=1_0", "xla_gpu_detect_nan=WARNING"])
def test_options_take_what_xla_takes(flag: str) -> None:
    with pytest.raises(UsageError, match=f"--{flag.partition('=')[0]}: "):
        parse_arguments([f"--{flag}", "x.hlo"])
    assert parse_arguments(["--xla_gpu_memory_limit_slop_factor=-3", "x.hlo"])[0].xla_gpu_memory_limit_slop_factor == -3


def test_accepted_flags_keep_their_values() -> None:
    assert _others("--xla_gpu_autotune_level=0", "--xla_gpu_triton_gemm_any", "--xla_gpu_autotune_gemm_rtol", ".5") == {
        "xla_gpu_autotune_level": "0",
        "xla_gpu_triton_gemm_any": "true",
        "xla_gpu_autotune_gemm_rtol": "0.5",
    }


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("xla_gpu_ragged_all_to_all_mode=peer", "COLLECTIVES_PEER_MEMORY"),
        ("xla_step_marker_location=STEP_MARK_NONE", "STEP_MARK_NONE"),
        (
            "xla_cpu_experimental_xnn_fusion_type=+individual_dot,+reduce",
            "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE",
        ),
        ("xla_gpu_enable_collectives_command_buffer_filter=allreduce,alltoall", "ALLREDUCE,ALLTOALL"),
        ("xla_backend_extra_options=a=1,b", "a=1,b"),
    ],
)  # fmt: skip
def test_values_of_enums_and_lists(flag: str, value: str) -> None:
    assert _others(f"--{flag}") == {flag.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--xla_gpu_autotune_level=high", "'high' is not an integer"),
        ("--xla_gpu_autotune_level=5000000000", "does not fit into 32 bits"),
        ("--xla_gpu_autotune_gemm_rtol=x", "'x' is not a number"),
        ("--xla_cpu_use_onednn=maybe", "'maybe' is not a boolean"),
        ("--xla_gpu_shape_checks=never", "'never' is not one of IGNORE, RUNTIME, COMPILE_TIME"),
        ("--xla_gpu_experimental_autotune_backends=+triton,cudnn", "a sign before some values"),
        ("--xla_gpu_mock_custom_calls", "is not supported"),
        ("--xla_gpu_autotune_level", "needs a value"),
    ],
)
def test_refusals(flag: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_arguments([flag])


def test_a_refused_flag_in_xla_flags_is_a_warning_for_other_programs_read_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_host_memory_offloading=true --xla_gpu_autotune_level=1")
    options, _, warnings = parse_arguments(["x.hlo"])
    assert dict(options.other_xla_flags) == {"xla_gpu_autotune_level": "1"}
    assert len(warnings) == 1
    assert "is not supported" in warnings[0]
    with pytest.raises(UsageError, match="is not supported"):
        parse_arguments(["--strict_flags", "x.hlo"])
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_host_memory_offloading=false")
    assert parse_arguments(["--strict_flags", "x.hlo"])[2] == ()


def test_a_text_proto_takes_every_field(tmp_path: Path) -> None:
    file = tmp_path / "flags.pbtxt"
    name = "xla_gpu_enable_collectives_command_buffer_filter"
    file.write_text(f'xla_gpu_autotune_level: 0\n{name}: [ALLREDUCE, ALLTOALL]\nseed: 3\n'
                    'xla_backend_extra_options { key: "some" value: "1" }\n')  # fmt: skip
    options, _, warnings = parse_arguments([f"--debug_options_file={file}", "x.hlo"])
    others = dict(options.other_xla_flags)
    assert (others["xla_gpu_autotune_level"], others[name]) == ("0", "ALLREDUCE,ALLTOALL")
    assert (options.seed, warnings) == (3, ())


@pytest.mark.parametrize("name", ["flagfile", "xla_flagfile"])
def test_a_flag_file_stands_where_it_is_named(name: str, tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text("--seed=7 # a comment\n")
    outer.write_text(f"# flags\n--iterations=2\n--flagfile={inner}\n--xla_gpu_autotune_level 3\n")
    options = parse_arguments(["--seed=1", f"--{name}={outer}", "--iterations=4", "x.hlo"])[0]
    assert (options.seed, options.iterations) == (7, 4)
    assert dict(options.other_xla_flags) == {"xla_gpu_autotune_level": "3"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--flagfile=FILE", "names itself"),
        ("module.hlo", "'module.hlo' is not a flag"),
        ("--custom_calls=f.py", "sets custom_calls, which runs code"),
        ("--seed='1", "No closing quotation"),
    ],
)
def test_flag_files_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text(text.replace("FILE", str(file)))
    with pytest.raises(UsageError, match=message):
        parse_arguments([f"--flagfile={file}", "x.hlo"])


def test_differing_flags_are_in_the_order_of_the_proto() -> None:
    given = {"xla_dump_to": "d", "xla_gpu_autotune_level": "0", "xla_gpu_ftz": "false", "seed": "2"}
    assert [(option.name, value) for option, value in differing(given)] == [
        ("xla_gpu_autotune_level", "0"),
        ("xla_dump_to", "d"),
    ]


def test_a_flag_that_the_release_has_dropped_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = parse_arguments(["--xla_gpu_enable_shared_constants=false", "x.hlo"])[2]
    assert any("has dropped flags that are ignored: --xla_gpu_enable_shared_constants" in line for line in warnings)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_shared_constants=false")
    with pytest.raises(UsageError, match=r"jaxlib 0\.12\.0\.1 has dropped --xla_gpu_enable_shared_constants"):
        parse_arguments(["--strict_flags", "x.hlo"])


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ("AllReduce:100:f32", ["  collective: ALLREDUCE", "  max_size_bytes: 100", "  op_type: F32"]),
        ("all-gather", ["  collective: ALLGATHER"]),
        ("all:5", ["  collective: ALLCOLLECTIVES", "  max_size_bytes: 5"]),
    ],
)
def test_limits_of_collectives_are_messages(value: str, lines: list[str]) -> None:
    """Recorded from released XLA."""
    name = "xla_enable_nccl_symmetric_buffers_for_collectives"
    assert debug_options_text({name: value}) == "\n".join([f"{name}: {{", *lines, "}", ""])


@pytest.mark.parametrize("value", ["AllReduce:x", "AllReduce:", "nothing:1", "AllReduce:1:f32:2"])
def test_limits_that_are_refused(value: str) -> None:
    assert _read(debug_options()["xla_enable_nccl_symmetric_buffers_for_collectives"], value) == "refused"
