"""Records of flags behave as frozen dataclasses."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from hlo_run.options import CompileOptions, Options


def test_values_that_are_not_given_are_the_defaults() -> None:
    options = Options(verify="off")
    assert (options.verify, options.xla_backend_optimization_level) == ("off", 3)
    assert options.compile == CompileOptions(verify="off")


def test_equal_values_are_equal_records() -> None:
    assert Options(verify="ends") == Options()
    assert hash(Options(verify="ends")) == hash(Options())
    assert Options(verify="off") != Options()
    assert pickle.loads(pickle.dumps(Options(verify="off"))) == Options(verify="off")
    assert "verify='off'" in repr(Options(verify="off"))


def test_a_changed_copy_keeps_the_other_values() -> None:
    copy = dataclasses.replace(Options(verify="off"), stage="ptx")
    assert (copy.verify, copy.stage) == ("off", "ptx")


def test_a_record_does_not_change() -> None:
    options: Any = Options()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.verify = "off"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del options.verify


def test_an_unknown_flag_is_refused() -> None:
    flags: dict[str, Any] = {"no_such_flag": 1}
    with pytest.raises(TypeError, match="Options has no flag no_such_flag"):
        Options(**flags)
