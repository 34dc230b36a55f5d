"""Commands that messages name: the words give the same options again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hlo_run.cli import parse_arguments
from hlo_run.options.command_line import AROUND_A_RUN, OF_ARGUMENTS, OF_READING, acting, flag_words, hlo_run_command, without
from hlo_run.options.programs import FLAGS

_WORDS = (
    *("--platform=Host", "--seed", "3", "--xla_allow_excess_precision=false", "--xla_fuel=cse=1,dce=2"),
    *("--insert_passes=p:after:cse", "--custom_calls=a b.py", "--reference_platform=", "--strict_flags"),
)


@pytest.mark.parametrize("variables", ["", "--xla_gpu_autotune_level=2 --seed=9 --xla_gpu_ptx_file=a.ptx"])
def test_the_words_give_the_options_again(variables: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if XLA_FLAGS is not the same when they are read."""
    monkeypatch.setenv("XLA_FLAGS", variables)
    options, _, _ = parse_arguments([*_WORDS, *(["--xla_gpu_ptx_file="] if variables else [])])
    words = shlex.split(hlo_run_command(options, "m m.hlo"))[1:]
    assert parse_arguments(words)[:2] == (options, ("m m.hlo",))
    monkeypatch.delenv("XLA_FLAGS")
    assert parse_arguments(words)[:2] == (options, ("m m.hlo",))


def test_files_of_a_command_for_another_folder_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.chdir(tmp_path)
    options, _, _ = parse_arguments(["--xla_gpu_ptx_file=a.ptx,/b.ptx", "--cache=off", "--seed=2"])
    assert set(flag_words(options, "sub")) == {"--seed=2", "--cache=off", f"--xla_gpu_ptx_file={tmp_path}/a.ptx,/b.ptx"}


def test_flags_that_would_be_refused_are_left_out() -> None:
    options, _, _ = parse_arguments(["--inputs=a.npz", "--seed=3", "--iterations=2", "--localize"])
    assert flag_words(acting(options, ["m.hlo"])) == ["--inputs=a.npz", "--localize"]


def test_the_groups_name_flags() -> None:
    """A group that names a flag which no longer exists would leave it in commands under its new name."""
    known = {*FLAGS.fields, "dumped_target"}
    assert known >= (AROUND_A_RUN | OF_ARGUMENTS | OF_READING)
    options, _, _ = parse_arguments(["--seed=3", "--v=2"])
    assert flag_words(without(options, AROUND_A_RUN | OF_ARGUMENTS)) == []
