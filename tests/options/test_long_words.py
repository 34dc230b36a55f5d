"""Text protos with very long words are read in time that is linear in their length."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.errors import UsageError
from hlo_run.options.parsing import read_flags
from hlo_run.target import from_text_proto

# The square of this number of steps would take minutes.
_LONG = "a" * 1_000_000


def test_a_long_word_in_a_target_config() -> None:
    with pytest.raises(UsageError, match="not a gpu_target_config"):
        from_text_proto(_LONG, "gpu.txt")


def test_a_long_word_in_debug_options(tmp_path: Path) -> None:
    file = tmp_path / "flags.txt"
    file.write_text(f'{_LONG}\nxla_dump_to: "x"\n')
    with pytest.raises(UsageError, match=r"line 2: expected ':' after a{80}\.\.\., found xla_dump_to"):
        read_flags([f"--debug_options_file={file}"], {})
