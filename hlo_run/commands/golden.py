"""`--golden_dir`: compiles each module and compares its stages with the texts in a directory, `DIR/MODULE/STAGE.txt`.

The texts hold no paths, times, addresses or numbers of processes, so equal compilations give equal bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from hlo_run.commands.compilation import compiling
from hlo_run.commands.task import Task
from hlo_run.errors import Mismatch, UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.observer import (
    BUFFER_TEXTS,
    FUSION_ANALYSIS,
    HLO_INPUT,
    OPTIMIZED_HLO,
    PTX,
    STAGES,
    THUNK_TEXTS,
    Level,
    Observer,
    Step,
)
from hlo_run.hlo_passes.replacements import file_name
from hlo_run.options import Options
from hlo_run.options.flag import names
from hlo_run.triage.diff.numbers import diff_figures, figures_text, kernel_figures, module_figures, read_figures, read_tolerances
from hlo_run.triage.diff.texts import TextDiff, diff_texts, record_of, text_of
from hlo_run.whole_files import write_problem, write_whole

# Stages that are figures: of the module, and of its kernels by ptxas.
NUMBERS, RESOURCES = "numbers", "resources"
# Stages that need no text of a kernel before its PTX.
_OF_MODULES = (HLO_INPUT, OPTIMIZED_HLO, FUSION_ANALYSIS, *BUFFER_TEXTS, *THUNK_TEXTS, PTX, NUMBERS, RESOURCES)
_ALIASES = {"buffers": "buffer-assignment"}
_SOURCE = "source.txt"
_NAME_CHARACTERS = 100
_MOST_LINES = 40


def check_golden_flags(options: Options) -> None:
    """Raise UsageError for unknown stages and tolerances, and for a directory that is a file."""
    golden_stages(options)
    read_tolerances(options.golden_tolerance)
    if os.path.exists(options.golden_dir) and not os.path.isdir(options.golden_dir):
        raise UsageError(f"--golden_dir={options.golden_dir} is not a directory")


def golden_stages(options: Options) -> tuple[str, ...]:
    """Return the stages to compare, each once; raises UsageError for an unknown one."""
    from hlo_run.pipeline.row_names import check_row_names

    stages: list[str] = []
    for name in names(options.golden_stages):
        stages += (*STAGES, NUMBERS, RESOURCES) if name == "all" else (_ALIASES.get(name, name),)
    if not stages:
        raise UsageError("--golden_stages names no stage")
    for stage in stages:
        if stage not in (NUMBERS, RESOURCES, HLO_INPUT, *STAGES):
            check_row_names(dataclasses.replace(options, stage=stage))
    return tuple(dict.fromkeys(stages))


def check_golden(task: Task, module: HloModule) -> None:
    """Compile `module`, and compare its stages with the golden texts or write them. Raises Mismatch if a stage differs."""
    stages = golden_stages(task.options)
    # Before the compilation, as the files after this one wait for its name.
    folder = Path(task.options.golden_dir, task.claim(lambda taken: _folder_name(task, module.name, taken)))
    texts = _compile(task, module, stages)
    task.result.golden = {"module": folder.name, "updated": task.options.update_goldens, "stages": []}
    diffs = [_diff(task, folder, stage, texts[stage]) for stage in stages if stage in texts]
    task.result.golden["stages"] = [record_of(diff) for diff in diffs]
    if task.options.update_goldens:
        _update(task, folder, {diff.name: texts[diff.name] for diff in diffs})
        return
    different = [diff for diff in diffs if diff.differs]
    # A module that is the same but for its names is worth a line too.
    shown = [diff for diff in diffs if diff.differs or diff.figures or diff.module is not None]
    lines = [line for diff in shown for line in _report(diff)]
    task.console.out("\n".join([*lines, f"{folder.name}: {len(different)} of {len(diffs)} stages differ"]))
    if different:
        task.result.golden_report = "\n".join(lines)
        what = ", ".join(f"{diff.name} (no golden)" if diff.missing == "before" else diff.name for diff in different)
        hint = "read the differences above; --update_goldens accepts the new texts"
        raise Mismatch(f"{folder.name} differs from its golden in {what}", hint=hint)


def _report(diff: TextDiff) -> Iterable[str]:
    """Return the lines about a stage."""
    if diff.missing:
        return [f"{diff.name}: " + ("no golden" if diff.missing == "before" else "only the golden has this text")]
    return text_of(diff, _MOST_LINES)


def _folder_name(task: Task, name: str, taken: Collection[str]) -> str:
    """Return the name of a module's directory: its name, and the name of its file if another file has that directory.

    A module on stdin has the directory of its name, whichever file it is from.
    """
    plain = file_name(name).strip(".") or "module"
    if len(plain) > _NAME_CHARACTERS:
        plain = f"{plain[:_NAME_CHARACTERS]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    source = os.path.basename(task.file)
    root, stem = Path(task.options.golden_dir), file_name(source.partition(".")[0])
    number = 0
    while True:
        number += 1
        folder = plain if number == 1 else f"{plain}.{stem}" if number == 2 else f"{plain}.{stem}.{number - 1}"
        if folder not in taken and (source == "-" or _read(root / folder / _SOURCE) in (None, source + "\n")):
            return folder


def _compile(task: Task, module: HloModule, stages: Sequence[str]) -> dict[str, str]:
    """Return the text of each stage; empty if the compilation has no such text. `resources` is missing without ptxas."""
    from hlo_run.pipeline.compile import compile_module  # imports the passes

    keeper = (_Keeper if all(stage in _OF_MODULES for stage in stages) else _KernelKeeper)(stages)
    with compiling(task, module, watching=(lambda _: keeper,)) as (ctx, working):
        # Without ptxas: goldens do not depend on whether it is installed.
        executable = compile_module(replace(ctx, assembles=False), working)
        for kernel in executable.kernels:
            keeper.note(kernel.name, PTX, lambda text=kernel.ptx: text)
        texts = keeper.texts()
        if NUMBERS in stages:
            texts[NUMBERS] = figures_text(module_figures(executable, working))
        if RESOURCES in stages:
            figures = kernel_figures((kernel.ptx for kernel in executable.kernels), ctx.options.xla_gpu_cuda_data_dir)
            if figures is None:
                task.console.err(
                    "note: registers, shared memory, spills and SASS instructions are not compared, because ptxas is not found"
                )
            else:
                texts[RESOURCES] = figures_text(figures)
    if HLO_INPUT in stages:
        texts[HLO_INPUT] = module.to_string()
    return texts


class _Keeper(Observer):
    """Keeps the texts of stages about modules: of each HLO row the first one. Kernels may be compiled in other processes."""

    only_times = True

    @property
    def reads_hlo(self) -> bool:
        """True: goldens have modules."""
        return True

    def __init__(self, stages: Sequence[str]) -> None:
        self._stages = dict.fromkeys(stages)
        self._texts: dict[str, dict[str, str]] = {}

    def wants_note(self, title: str) -> bool:
        """Return True for a stage of the flags."""
        return title in self._stages

    def after(self, step: Step) -> None:
        """Keep the text of a row. The PTX of kernels comes from the executable."""
        if step.level is Level.PTX or (self.only_times and step.level is not Level.HLO):
            return
        for stage in (step.row, f"{step.pipeline}/{step.row}"):
            if stage in self._stages:
                self._keep(stage, step.kernel, step.text)

    def note(self, kernel: str, title: str, text: Callable[[], str]) -> None:
        """Keep a text about the module."""
        if title in self._stages:
            self._keep(title, kernel, text)

    def _keep(self, stage: str, kernel: str, text: Callable[[], str]) -> None:
        known = self._texts.setdefault(stage, {})
        if kernel not in known:
            known[kernel] = text().rstrip("\n") + "\n"

    def texts(self) -> dict[str, str]:
        """Return the text of each stage. A comment with the kernel's name precedes the text of each kernel."""
        found: dict[str, str] = {}
        for stage in self._stages:
            if stage not in (NUMBERS, RESOURCES, HLO_INPUT):
                parts = self._texts.get(stage, {}).items()
                found[stage] = "\n".join(f"// kernel: {kernel}\n{text}" if kernel else text for kernel, text in parts)
        return found


class _KernelKeeper(_Keeper):
    """Keeps the texts of kernels too."""

    only_times = False


def _diff(task: Task, folder: Path, stage: str, text: str) -> TextDiff:
    """Compare a stage with its golden. A missing golden and an empty text are the same."""
    golden = _read(_file(folder, stage))
    if not text or golden is None:
        return diff_texts(stage, golden, text or None) if golden != (text or None) else TextDiff(stage)
    if stage not in (NUMBERS, RESOURCES):
        return diff_texts(stage, golden, text)
    figures = diff_figures(read_figures(golden), read_figures(text), read_tolerances(task.options.golden_tolerance))
    return TextDiff(stage, figures=figures)


def _file(folder: Path, stage: str) -> Path:
    return folder / f"{file_name(stage)}.txt"


def _read(path: Path) -> str | None:
    """Return the text of a file; None if it does not exist. Raises UsageError if it cannot be read."""
    try:
        return path.read_bytes().decode(errors="backslashreplace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {os.strerror(error.errno or 0)}") from None


def _update(task: Task, folder: Path, texts: Mapping[str, str]) -> None:
    """Write the golden texts that differ in any byte, and remove those of empty stages. Raises UsageError."""
    changed: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if task.file != "-":
            write_whole(str(folder / _SOURCE), f"{os.path.basename(task.file)}\n".encode(errors="surrogateescape"))
        for stage, text in texts.items():
            path = _file(folder, stage)
            if (_read(path) or "") == text:
                continue
            changed.append(stage)
            if text:
                write_whole(str(path), text.encode())
            else:
                path.unlink()
    except OSError as error:
        raise UsageError(f"--golden_dir: '{folder}' cannot be written: {write_problem(error)}") from None
    task.console.out(f"{folder.name}: {len(changed)} of {len(texts)} stages updated{': ' if changed else ''}{', '.join(changed)}")
