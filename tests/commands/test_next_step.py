"""The line `next: ..` of a failing run: a command with the flags of the run."""

from __future__ import annotations

import pytest

from hlo_run.cli import parse_arguments
from hlo_run.commands.next_step import next_step
from hlo_run.errors import DeviceError, InternalError, Mismatch, OutOfTime, PluginError


def _next(error: Exception, *words: str) -> str:
    options, _, _ = parse_arguments([*words, "m m.hlo"])
    assert isinstance(error, InternalError | Mismatch | DeviceError)
    return next_step(error, options, "m m.hlo")


def test_the_flags_of_the_run_are_in_the_command() -> None:
    text = _next(
        InternalError("x"), "--platform=Host", "--v=2", "--report_json=r.json", "--xla_fuel=cse=1", "--strict_flags=true"
    )
    run = "--run='hlo-run --platform=Host --xla_fuel=cse=1 --strict_flags'"
    assert text.startswith(f"hlo-tool bisect 'm m.hlo' {run} names")
    assert f"hlo-tool reduce 'm m.hlo' {run} shrinks" in text


def test_flags_that_are_false_keep_their_value() -> None:
    assert "--run='hlo-run --xla_allow_excess_precision=false'" in _next(InternalError("x"), "--xla_allow_excess_precision=false")


def test_a_smaller_module_does_not_get_the_inputs() -> None:
    text = _next(InternalError("x"), "--inputs=a.npz")
    assert "hlo-tool bisect 'm m.hlo' --run='hlo-run --inputs=a.npz' names" in text
    assert "reduce 'm m.hlo' --run=hlo-run shrinks the module, if it fails without --inputs" in text


@pytest.mark.parametrize(
    ("error", "words", "start"),
    [
        (Mismatch("x"), ["--platform=Host", "--seed=2"], "hlo-run --platform=Host --seed=2 --check_each_pass 'm m.hlo' names"),
        (Mismatch("x"), ["--check_each_pass"], "hlo-tool reduce 'm m.hlo' --run=hlo-run shrinks"),
        (
            Mismatch("x", notes=("right; look at the buffers: ..",)),
            ["--localize", "--seed=2"],
            "hlo-run --seed=2 --verify=every 'm m.hlo' names",
        ),
        (
            Mismatch("x", notes=("wrong; look at kernel row 'cse': ..",)),
            ["--check_each_pass"],
            "hlo-tool bisect 'm m.hlo' --run=hlo-run names the rewrite in the row",
        ),
        (DeviceError("x", hint="--host_check says"), ["--v=1"], "hlo-run --platform=Host --localize 'm m.hlo' names"),
        (DeviceError("x"), ["--localize"], "hlo-tool reduce 'm m.hlo' --run=hlo-run shrinks"),
        (DeviceError("x"), ["--iterations=2"], "hlo-run --platform=Host --localize 'm m.hlo' names"),
        (OutOfTime("longer than"), ["--timeout=2"], "hlo-tool bisect 'm m.hlo' --run='hlo-run --timeout=2.0' names"),
    ],
)
def test_the_command_fits_the_failure(error: Exception, words: list[str], start: str) -> None:
    assert _next(error, *words).startswith(start)


@pytest.mark.parametrize(
    "error",
    [
        DeviceError("there is no device", hint="--platform=Host"),
        DeviceError("custom call f raised ValueError: no (%r)"),
        OutOfTime("the compilation or the run took longer than 1 s, in the reading of the file", hint=".."),
        OutOfTime("the compilation or the run took longer than 1 s, in the pass 'p'", hint=".."),
        InternalError("the process died with SIGSEGV in the reading of the file"),
    ],
)
def test_where_no_command_helps_there_is_none(error: Exception) -> None:
    assert not _next(error)


def test_a_plugin_that_raises_needs_no_command() -> None:
    options, _, _ = parse_arguments([])
    assert not next_step(PluginError("the pass 'p' raised ValueError"), options, "m.hlo")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--platform=Interpreter", "--reference_platform=CPU"],
            "hlo-tool reduce 'm m.hlo' --run='hlo-run --platform=Interpreter",
        ),
        (
            ["--platform=Host", "--insert_passes=p:after:cse"],
            "hlo-run --platform=Host --insert_passes=p:after:cse --check_each_pass",
        ),
        (["--expected_output=e.npz", "--check_each_pass"], "hlo-tool reduce 'm m.hlo' --run=hlo-run shrinks the module, if it"),
    ],
)
def test_flags_that_would_be_refused_are_not_in_the_command(words: list[str], text: str) -> None:
    assert _next(Mismatch("x"), *words).startswith(text)


def test_a_replaced_kernel_is_left_out_next() -> None:
    found = Mismatch("x", notes=("kernel 'k' is wrong; look at 'a.ptx', which replaces it",))
    assert _next(found, "--check_each_pass", "--xla_gpu_ptx_file=a.ptx") == "hlo-run 'm m.hlo' runs without the replaced kernels"
