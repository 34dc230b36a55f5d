"""The conditions under which goldens were made: the target, the versions and the flags, in `DIR/MODULE/made_with.txt`.

target h100_sxm (sm_90, 132 SMs)
hlo-run 0.1.0
llvmlite 0.50.0
--xla_gpu_enable_fast_min_max=true
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from hlo_run.cache import package_version
from hlo_run.codegen.llvm.ptxas import ptxas_version
from hlo_run.errors import UsageError
from hlo_run.options import CompileOptions, Options, RunOptions, ShowOptions
from hlo_run.pass_support.observer import LLVM, LLVM_BEFORE_OPTIMIZATIONS, PTX
from hlo_run.target import PRESETS, TargetSpec
from hlo_run.version import VERSION

MADE_WITH = "made_with.txt"
NUMBERS, RESOURCES = "numbers", "resources"
"""The stages that are figures: of the module, and of its kernels by ptxas."""
_OF_LLVM = (LLVM_BEFORE_OPTIMIZATIONS, LLVM, PTX, RESOURCES)
# Flags that change the module before its compilation, or the texts; and those that choose the target.
_OF_MODULES = frozenset("num_replicas num_partitions while_execution_count remove_infeed_outfeed compile_as_stablehlo".split())
_OF_TEXTS = frozenset("xla_dump_large_constants print_locations print_ir_generic print_ir_as_xla".split())
_OF_TARGETS = frozenset("target xla_gpu_target_config_filename dumped_target xla_gpu_cuda_data_dir".split())


class Conditions(Struct, frozen=True):
    """The conditions of a compilation: the target, the versions of programs, the flags that are not at their default."""

    target: str
    versions: dict[str, str]
    flags: tuple[str, ...]

    def text(self) -> str:
        """Return the text of the file."""
        versions = (f"{name} {version}\n" for name, version in self.versions.items())
        return "".join([f"target {self.target}\n", *versions, *(f"{flag}\n" for flag in self.flags)])

    def other_versions(self, golden: Conditions, stage: str = "") -> str:
        """Return how the versions differ from the versions of a golden, as the end of a sentence.

        It is empty if they do not matter to `stage`.
        """
        others = [
            (f"{name} {version}", f"{name} {self.versions[name]}")
            for name, version in golden.versions.items()
            if self.versions.get(name, version) != version and (not stage or _matters(name, stage))
        ]
        before, now = (" and ".join(pair[side] for pair in others) for side in (0, 1))
        return f"made with {before}, this is {now}" if others else ""

    def other_flags(self, golden: Conditions) -> str:
        """Return how the flags differ from the flags of a golden, as the end of a sentence."""
        before = shlex.join(flag for flag in golden.flags if flag not in self.flags)
        now = shlex.join(flag for flag in self.flags if flag not in golden.flags)
        if not before:
            return f"made without {now}" if now else ""
        return f"made with {before}" + (f", not {now}" if now else ", which this command lacks")


def _matters(program: str, stage: str) -> bool:
    return program == "hlo-run" or (stage in _OF_LLVM if program == "llvmlite" else stage == RESOURCES)


def conditions_of(options: Options, target: TargetSpec, *, has_resources: bool) -> Conditions:
    """Return the conditions of a compilation for `target`, in which ptxas takes part if it `has_resources`."""
    versions = {"hlo-run": VERSION, "llvmlite": package_version("llvmlite")}
    if has_resources and (version := _ptxas(options.xla_gpu_cuda_data_dir)):
        versions["ptxas"] = version
    return Conditions(target_words(target), versions, tuple(_flags(options)))


def target_words(target: TargetSpec) -> str:
    """Return the target as goldens record it."""
    return f"{target.name} ({target.sm_name}, {target.core_count} SMs)"


@lru_cache(1)
def _ptxas(cuda_data_dir: str) -> str:
    return ptxas_version(cuda_data_dir)


def _flags(options: Options) -> list[str]:
    found: list[str] = []
    for field in fields(Options):
        value = getattr(options, field.name)
        if value == field.default or not _counts(field.name):
            continue
        if field.metadata["metavar"] in ("DIR", "FILE", "FILES"):
            value = ",".join(os.path.basename(part) for part in str(value).split(","))
        found.append(f"--{field.name}={str(value).lower() if isinstance(value, bool) else value}")
    return found


_COMPILATION = frozenset(field.name for field in fields(CompileOptions) if not field.metadata["no_effect"])
assert {*_OF_MODULES, *_OF_TEXTS} <= {field.name for record in (RunOptions, ShowOptions) for field in fields(record)}


def _counts(name: str) -> bool:
    return name in _OF_MODULES or name in _OF_TEXTS or (name in _COMPILATION and name not in _OF_TARGETS)


def read_conditions(folder: Path) -> Conditions | None:
    """Return the conditions of the goldens in a module's directory; None if they are not known. Raises UsageError."""
    try:
        lines = (folder / MADE_WITH).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"'{folder / MADE_WITH}' cannot be read: {os.strerror(error.errno or 0)}") from None
    named = dict(line.split(" ", 1) for line in lines if " " in line and not line.startswith("--"))
    target = named.pop("target", "")
    return Conditions(target, named, tuple(line for line in lines if line.startswith("--")))


def check_directory(options: Options, targets: Collection[str], now: Conditions) -> list[str]:
    """Return sentences about goldens that were made with other flags than the command's; `targets` are the targets of its files.

    Raises UsageError if the directory has no goldens, or if all of them are for another target.
    """
    folders = _folders(Path(options.golden_dir))
    if not folders:
        exists = "holds no goldens" if os.path.isdir(options.golden_dir) else "does not exist"
        hint = "--update_goldens writes the goldens of these modules"
        raise UsageError(f"--golden_dir: the directory '{options.golden_dir}' {exists}", hint=hint)
    known = [found for folder in folders if (found := read_conditions(folder)) is not None]
    others = {found.target for found in known}
    if len(known) == len(folders) and not others & set(targets):
        hint = f"{target_hint(min(others))}; --update_goldens replaces them"
        of, ours = " and ".join(sorted(others)), " and ".join(sorted(targets))
        raise UsageError(f"the goldens in '{options.golden_dir}' are for {of}, and this command compiles for {ours}", hint=hint)
    said = Counter(text for found in known for text in (now.other_versions(found), now.other_flags(found)) if text)
    return [f"{_count(count, len(folders))} in '{options.golden_dir}' were {text}" for text, count in said.items()]


def target_hint(target: str) -> str:
    """Return how to compile for the target of goldens."""
    name = target.partition(" ")[0]
    return f"--target={name} compares with them" if name in PRESETS else "--xla_gpu_target_config_filename names a target"


def _count(count: int, of: int) -> str:
    return "the goldens" if count == of else f"the goldens of {count} of {of} modules"


def _folders(root: Path) -> list[Path]:
    """Return the directories in `root` that hold goldens, in the order of their names. Raises UsageError."""
    try:
        return sorted({path.parent for path in root.glob("*/*.txt")}) if os.access(root, os.R_OK | os.X_OK) else _unreadable(root)
    except OSError as error:
        raise UsageError(f"--golden_dir: '{root}' cannot be read: {os.strerror(error.errno or 0)}") from None


def _unreadable(root: Path) -> list[Path]:
    if root.exists():
        raise UsageError(f"--golden_dir: '{root}' cannot be read: permission denied")
    return []
