"""One line says that a file is a dump of another release of XLA."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.version import XLA_RELEASE

MODULE = "HloModule m\nENTRY e { a = f32[4] parameter(0) ROOT b = f32[4] exponential(a) }\n"
OPTIMIZED = """HloModule m, is_scheduled=true, frontend_attributes={fingerprint_before_lhs="5f"}

ENTRY e {
  a = f32[4]{0} parameter(0)
  c = () custom-call(), custom_call_target="x", custom_call_has_side_effect=true, backend_config={"operation_queue_id":"0"KEYS}
  ROOT b = f32[4]{0} exponential(a)
}
"""
CONFIG = "debug_options {\n  xla_gpu_ftz: false\nFIELDS}\npartition_size: 1\n"


def _note(path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    path.write_text(text)
    assert run(["--stage=hlo-input", str(path)]) == 0
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "age"),
    [
        (CONFIG.replace("FIELDS", ""), ""),
        (CONFIG.replace("FIELDS", "").replace("partition_size: 1\n", ""), "an earlier"),
        (CONFIG.replace("FIELDS", "  xla_gpu_use_inprocess_lld: false\n"), "an earlier"),
        (CONFIG.replace("FIELDS", "  xla_gpu_not_known_yet {\n    xla_inner: 1\n  }\n"), "a later"),
    ],
)
def test_the_configuration_beside_it_tells(config: str, age: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "module_0001.m.config.pbtxt").write_text(config)
    said = _note(tmp_path / "module_0001.m.before_optimizations.txt", MODULE, capsys)
    expected = f"was dumped by {age} release of XLA than that of jaxlib {XLA_RELEASE}, which hlo-run mirrors\n" if age else ""
    assert said.endswith(expected)
    assert bool(said) == bool(age)


def test_our_own_dumps_are_of_the_mirrored_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.hlo").write_text(MODULE)
    assert run(["--stage=hlo", f"--xla_dump_to={tmp_path}/d", str(tmp_path / "m.hlo")]) == 0
    capsys.readouterr()
    dump = next((tmp_path / "d").glob("*after_optimizations.txt"))
    assert _note(dump, dump.read_text(), capsys) == ""


@pytest.mark.parametrize(
    ("keys", "is_earlier"), [("", False), (',"zone":1', False), (',"device_type":"DEVICE_TYPE_INVALID"', True)]
)
def test_the_order_of_keys_tells(keys: str, is_earlier: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = _note(tmp_path / "optimized.hlo", OPTIMIZED.replace("KEYS", keys), capsys)
    assert ("an earlier release" in said) == is_earlier
    plain = OPTIMIZED.replace("KEYS", keys).replace(', frontend_attributes={fingerprint_before_lhs="5f"}', "")
    assert _note(tmp_path / "plain.hlo", plain, capsys) == ""
