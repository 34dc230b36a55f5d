"""Start hlo-run as a process, for tests of crashes, signals and limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

NEGATE = """HloModule neg
ENTRY e {
  x = f32[256] parameter(0)
  ROOT r = f32[256] negate(x)
}
"""
ABS = NEGATE.replace("neg", "absolute").replace("absoluteate", "abs")
# The LLVM IR that the emitter makes for the kernel of NEGATE, with marks for a line of the body and for more definitions.
NEGATE_LLVM = """target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

define ptx_kernel void @wrapped_negate(ptr noalias align 16 %0, ptr noalias align 256 %1) #0 {
  %3 = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %4 = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %5 = mul i32 %4, 128
  %6 = add i32 %5, %3
  %7 = getelementptr inbounds float, ptr %0, i32 %6
  %8 = load float, ptr %7
  BODY
  %9 = fneg float %8
  %10 = getelementptr inbounds float, ptr %1, i32 %6
  store float %9, ptr %10
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
attributes #0 = { "nvvm.reqntid"="128,1,1" }
MODULE
"""


@contextmanager
def default_signals() -> Generator[None]:
    """Let processes started in the block have the default signals: a shell starts background jobs with SIGINT ignored.

    `preexec_fn` would fork, of which JAX warns if a test has loaded it.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with an own folder for temporary files, and one for reproducers."""
    (folder / "temporary").mkdir(exist_ok=True)
    return {
        **os.environ,
        "TMPDIR": str(folder / "temporary"),
        "HLO_RUN_CRASH_DIR": str(folder / "crashes"),
        "HLO_RUN_CACHE": "off",
    }


def hlo_run(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run hlo-run to its end."""
    command = [sys.executable, "-m", "hlo_run", *arguments]
    with default_signals():
        return subprocess.run(command, input=stdin, env=environment(folder), capture_output=True, text=True, check=False)


def reproducers(folder: Path) -> list[Path]:
    """Return the reproducers of the runs in `folder`, oldest first."""
    return sorted((folder / "crashes").iterdir()) if (folder / "crashes").exists() else []
