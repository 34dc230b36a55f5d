"""Extracting, caching and linking functions of libdevice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hlo_run.codegen.llvm import libdevice
from hlo_run.codegen.llvm.emit_ptx import compile_llvm
from hlo_run.codegen.llvm.libdevice import USUAL_FUNCTIONS, link_libdevice
from hlo_run.codegen.llvm.nvptx import Module
from hlo_run.codegen.llvm.toolkit import LIBDEVICE, PTXAS, find_in_toolkit
from hlo_run.errors import DeviceError, InternalError
from hlo_run.target import preset

pytestmark = pytest.mark.skipif(find_in_toolkit(LIBDEVICE) is None, reason="no libdevice on this machine")


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use an empty cache directory that the process has not read yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    libdevice._usual_library.cache_clear()  # pyright: ignore[reportPrivateUsage] - what the process remembers of it
    yield tmp_path / "cache" / "hlo-run" / "libdevice"
    libdevice._usual_library.cache_clear()  # pyright: ignore[reportPrivateUsage]


def _caller(function: str, type_: str = "float") -> str:
    return (
        f"declare {type_} @{function}({type_})\n"
        f"define ptx_kernel void @k(ptr %p) {{\n  %x = load {type_}, ptr %p\n"
        f"  %y = call {type_} @{function}({type_} %x)\n  store {type_} %y, ptr %p\n  ret void\n}}\n"
    )


def _ptx(function: str, type_: str = "float") -> str:
    return compile_llvm(_caller(function, type_), preset("h100")).ptx


def test_the_cut_is_kept_and_used_again(fresh_cache: Path) -> None:
    first = _ptx("__nv_tanhf")
    (file,) = fresh_cache.iterdir()
    text = file.read_text(encoding="utf-8")
    assert "@__nv_tanhf(" in text
    assert "@__nv_ynf(" not in text, "Bessel functions are of no use here"
    libdevice._usual_library.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert _ptx("__nv_tanhf") == first
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("damage", ["", "half a file"])
def test_a_damaged_cache_is_made_anew(fresh_cache: Path, damage: str) -> None:
    expected = _ptx("__nv_expf")
    (file,) = fresh_cache.iterdir()
    file.write_text(damage, encoding="utf-8")
    libdevice._usual_library.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert _ptx("__nv_expf") == expected
    assert file.read_text(encoding="utf-8") != damage


def test_a_cache_that_cannot_be_written_only_costs_time(fresh_cache: Path) -> None:
    fresh_cache.parent.parent.write_text("a file where the directory should be", encoding="utf-8")
    assert ".entry k" in _ptx("__nv_logf")


def test_nothing_but_the_function_and_its_needs_is_left(fresh_cache: Path) -> None:
    module = Module.from_text(_caller("__nv_sinf"))
    link_libdevice(module, ["__nv_sinf"])
    assert "define internal float @__nv_sinf(" in str(module)
    assert "@__nv_cosf" not in str(module)
    module.verify()


def test_functions_that_share_a_helper() -> None:
    module = Module.from_text(_caller("__nv_sin", "double") + "declare double @__nv_cos(double)\n")
    link_libdevice(module, ["__nv_sin", "__nv_cos"])
    assert len([name for name in module.defined_functions() if "slowpath" in name]) == 1
    module.verify()


def test_an_unusual_function_is_cut_on_demand() -> None:
    assert "__nv_j0f" not in USUAL_FUNCTIONS
    ptx = _ptx("__nv_j0f")
    assert ".entry k" in ptx
    assert ".extern" not in ptx


def test_a_function_that_does_not_exist() -> None:
    with pytest.raises(InternalError, match="libdevice has no function __nv_nonsense"):
        _ptx("__nv_nonsense")


def _found_nowhere(*_: str) -> None:
    return None


def test_without_libdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libdevice, "find_in_toolkit", _found_nowhere)
    with pytest.raises(DeviceError, match="libdevice is not found") as caught:
        _ptx("__nv_expf")
    assert "nvidia-cuda-nvcc" in caught.value.hint


def test_the_users_directory_comes_first(tmp_path: Path) -> None:
    wheel = find_in_toolkit(LIBDEVICE)
    own = tmp_path / LIBDEVICE
    own.parent.mkdir(parents=True)
    own.write_bytes(b"")
    assert find_in_toolkit(LIBDEVICE, str(tmp_path)) == own
    assert find_in_toolkit(LIBDEVICE, str(tmp_path / "nothing")) == wheel
    assert find_in_toolkit(PTXAS, str(tmp_path)) == find_in_toolkit(PTXAS)
