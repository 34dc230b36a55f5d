"""Record the passes of real XLA:GPU in the order in which they run, for the tests of the pass table.

    python3 scripts/venv.py python scripts/record_xla_pipelines.py > tests/data/xla_pipelines.txt

XLA compiles three small modules for an H100 with its defaults, Triton included, and logs its passes: one module of a single
partition, one that Shardy divides in two, one that GSPMD divides in two. One line `pipeline<TAB>pass` per pass, from the begin of
a compilation to its end; a nested pipeline appears where it runs. What only a later module runs comes before what it runs it in
place of. The modules are so small that each pipeline that repeats runs once. Left out are the compilations of candidates within
`config-assigner`, and the number of the call in `apply-xla-transforms-N`. Needs `hlo-run[xla-gpu]`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import reduce
from pathlib import Path

from hlo_run.codegen.llvm.toolkit import PTXAS, find_in_toolkit
from hlo_run.formats import gpu_plugin
from hlo_run.formats.xla_gpu import find_plugin
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

_PRODUCT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_ONE = f"""HloModule m

ENTRY main {{
  x = f32[256,512] parameter(0)
  w = f32[512,128] parameter(1)
  d = f32[256,128] dot(x, w), {_PRODUCT}
  ROOT t = f32[256,128] tanh(d)
}}
"""
_SHARDY = f"""HloModule m, num_partitions=2, frontend_attributes={{xla.sdy.meshes="{{mesh = #sdy.mesh<[\\"a\\"=2]>}}"}}

ENTRY main {{
  x = f32[128,256] parameter(0), frontend_attributes={{xla.sdy.sharding="#sdy.sharding<@mesh, [{{\\"a\\"}}, {{}}]>"}}
  w = f32[256,128] parameter(1)
  ROOT d = f32[128,128] dot(x, w), {_PRODUCT}
}}
"""
_GSPMD = f"""HloModule m, num_partitions=2

ENTRY main {{
  x = f32[128,256] parameter(0), sharding={{devices=[2,1]<=[2]}}
  w = f32[256,128] parameter(1), sharding={{devices=[2,1]<=[2]}}
  ROOT d = f32[128,128] dot(x, w), {_PRODUCT}, sharding={{devices=[2,1]<=[2]}}
}}
"""
MODULES = (_ONE, _SHARDY, _GSPMD)
# Autotuning needs a GPU.
_FLAGS = "--xla_gpu_autotune_level=0"
LOG = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "hlo_pass_pipeline=1"}
_BEGINS = re.compile(r"Running HLO pass pipeline on module \S+: (.*)$")
_PASS = re.compile(r"\]   HLO pass (.*)$")
_ENDS = re.compile(r"HLO pass: (.*?) time: ")
# It compiles candidates with pipelines of its own.
_COMPILES = "config-assigner"
_NUMBERED = re.compile(r"^(apply-xla-transforms)-\d+$")


def main() -> None:
    print(*reduce(merge_lines, map(_recorded, MODULES)), sep="\n")


def merge_lines(first: Sequence[str], later: Sequence[str]) -> list[str]:
    """Return the lines of both in their order. Where the two differ, the lines of `later` come before those of `first`."""
    lines: list[str] = []
    for kind, start, end, later_start, later_end in SequenceMatcher(None, first, later, autojunk=False).get_opcodes():
        if kind != "equal":
            lines += later[later_start:later_end]
        lines += first[start:end]
    return lines


def _recorded(module: str) -> list[str]:
    """Compile a module with XLA and return a line per pass."""
    tool = find_in_toolkit(PTXAS, "")
    where = f" --xla_gpu_cuda_data_dir={tool.parent.parent}" if tool is not None else ""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "target.txtpb")
        target.write_text(to_text_proto(preset(DEFAULT_TARGET)), encoding="utf-8")
        command = [sys.executable, "-P", gpu_plugin.__file__, str(find_plugin("record_xla_pipelines.py")), str(target)]
        environment = os.environ | {"XLA_FLAGS": _FLAGS + where, **LOG}
        done = subprocess.run(command, input=module, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"XLA refuses a module: {done.stderr[-2000:]}")
    return lines_of_log(done.stderr)


def lines_of_log(log: str) -> list[str]:
    """Return a line per pass in a log."""
    return ["\t".join((pipeline, _NUMBERED.sub(r"\1", name))) for pipeline, name in passes_of_log(log.splitlines())]


def passes_of_log(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (pipeline, pass) for each pass in a log. A pipeline within another one is no pass of it."""
    running: list[str] = []  # pipelines, and passes that run pipelines
    passes: list[int] = []  # the places of the latter
    pending = ""  # a pass that has begun, or the pipeline of this name that begins on the next line
    for line in lines:
        if begins := _BEGINS.search(line):
            if not pending:
                del running[passes[-1] + 1 if passes else 0 :]  # XLA logs no end of a pipeline that is in no other one
            elif pending != begins[1]:
                yield running[-1], pending
                passes.append(len(running))
                running.append(pending)
            running.append(begins[1])
            pending = ""
        elif begun := _PASS.search(line):
            pending = begun[1]
        elif ends := _ENDS.search(line):
            if pending:
                if not any(running[place] == _COMPILES for place in passes):
                    yield running[-1], pending
                pending = ""
            elif ends[1] in running:
                del running[len(running) - 1 - running[::-1].index(ends[1]) :]
                passes = [place for place in passes if place < len(running)]


if __name__ == "__main__":
    main()
