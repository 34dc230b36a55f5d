"""SASS instructions are counted as nvdisasm lists them."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
from pathlib import Path

import pytest

from hlo_run.codegen.llvm.cubin import sass_instructions
from hlo_run.codegen.llvm.ptxas import assemble, find_ptxas, join_entries

_LISTED = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
_PTX = """.version 8.7
.target SM
.address_size 64
.visible .entry KERNEL(.param .u64 a)
{
    .reg .b64 %rd<3>; .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [a];
    ld.global.u32 %r1, [%rd1];
    setp.lt.s32 %p1, %r1, 7;
    @%p1 bra $done;
    REPEATED
    st.global.u32 [%rd1], %r1;
$done:
    ret;
}
"""


def _nvdisasm() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((file for place in places for file in Path(place).glob("*/bin/nvdisasm*")), None)


def _ptx(sm_name: str, kernel: str, times: int) -> str:
    text = _PTX.replace("SM", sm_name).replace("KERNEL", kernel)
    return text.replace("REPEATED", "mul.lo.s32 %r1, %r1, %r1; xor.b32 %r1, %r1, 0x1235;" * times)


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas, a wheel of Linux and Windows, makes the cubins")
@pytest.mark.parametrize("sm_name", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_as_many_as_nvdisasm_lists(sm_name: str, tmp_path: Path) -> None:
    tool, ptxas = _nvdisasm(), find_ptxas()
    if tool is None or ptxas is None:
        pytest.skip("nvdisasm, a wheel of Linux, is the judge; the test by hand below needs none")
    # two kernels in one file
    text = _ptx(sm_name, "short", 1) + _ptx(sm_name, "long", 20).partition(".address_size 64")[2]
    (tmp_path / "k.ptx").write_text(text)
    cubin = tmp_path / "k.cubin"
    subprocess.run([str(ptxas), f"-arch={sm_name}", "-o", str(cubin), str(tmp_path / "k.ptx")], check=True)
    listing = subprocess.run([str(tool), "-c", str(cubin)], check=True, capture_output=True, text=True).stdout
    expected: dict[str, int] = {}
    for part in re.split(r"^\.text\.", listing, flags=re.MULTILINE)[1:]:
        expected[part.partition(":")[0]] = sum(name != "NOP" for name in _LISTED.findall(part))
    assert set(expected) == {"short", "long"}
    assert sass_instructions(cubin.read_bytes()) == expected
    assert {report.kernel: report.sass_instructions for report in assemble(text)} == expected
    assert expected["long"] - expected["short"] >= 2 * 19


def test_only_modules_of_one_kernel_are_joined() -> None:
    one, two, other = _ptx("sm_90", "one", 1), _ptx("sm_90", "two", 2), _ptx("sm_80", "other", 1)
    shared = two.replace(".visible .entry", ".shared .align 4 .b8 tile[64];\n.visible .entry")
    text, rest = join_entries([one, shared, other, two])
    assert rest == (1, 2)
    assert text.count(".version") == 1
    assert [".entry one" in text, ".entry two" in text, text.count(".entry")] == [True, True, 2]
    assert join_entries([one, other]) == ("", (0, 1))
    if find_ptxas() is not None:
        assert [report.kernel for report in assemble(text)] in (["one", "two"], ["two", "one"])


def test_nops_are_not_counted() -> None:
    """A cubin made by hand: two NOPs that differ in other bits, and a load."""
    code = b"".join(word.to_bytes(16, "little") for word in (0x7918 | 5 << 12, 0x1918 | 1 << 100, 0x0981))
    names = b"\0.text.k\0.shstrtab\0"
    table = [(0, 0, 0), (1, 64, len(code)), (9, 64 + len(code), len(names))]
    header = bytearray(b"\x7fELF".ljust(64, b"\0"))
    struct.pack_into("<Q", header, 40, 64 + len(code) + len(names))
    struct.pack_into("<HHH", header, 58, 64, len(table), 2)
    sections = b"".join(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 1, 0) for name, at, size in table)
    assert sass_instructions(bytes(header) + code + names + sections) == {"k": 1}
