"""Reduces LLVM IR through LLVM's own `llvm-reduce`, where it is installed."""

from __future__ import annotations

import os
import shutil

from hlo_run.containment.children import run_command, temporary_folder
from hlo_run.errors import DeviceError, UsageError
from hlo_run.execution.console import Console
from hlo_run.triage.predicates import Predicate, TestPredicate

_NAMES = ("llvm-reduce", *(f"llvm-reduce-{version}" for version in range(24, 13, -1)))


def is_llvm_ir(path: str) -> bool:
    """True for the name of a file of LLVM IR."""
    return path.endswith((".ll", ".bc"))


def reduce_llvm(console: Console, file: str, predicate: Predicate, output: str) -> int:
    """Run llvm-reduce with the command of `--test`, and return the tool's exit code; raises UsageError for `--run`.

    Raises DeviceError if llvm-reduce is not installed or fails.
    """
    if not isinstance(predicate, TestPredicate):
        raise UsageError("LLVM IR needs --test='COMMAND {}'", hint="--run takes HLO modules")
    tool = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if tool is None:
        raise DeviceError("llvm-reduce is not installed", hint="install LLVM's tools, for example the package llvm")
    with temporary_folder("hlo-reduce-") as folder:
        script = folder / "test.sh"
        test = predicate.text.replace("{}", '"$1"')
        script.write_text(f"#!/bin/sh\n{test}\n", encoding="utf-8")
        script.chmod(0o700)
        done = run_command([tool, f"--test={script}", "-o", os.path.abspath(output), os.path.abspath(file)], b"")
    text = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        if "isn't interesting" in text or "not interesting" in text:
            console.err(f"{file} is not interesting: {predicate.command(file)}")
            return 1
        message = f"{tool} ended with exit code {done.returncode}"
        raise DeviceError(message, hint="hlo-run's IR needs LLVM 17 or newer", notes=tuple(text.splitlines()[-6:]))
    console.out(f"{output}: reduced by {tool}")
    return 0
