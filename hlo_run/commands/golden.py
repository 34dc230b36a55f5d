"""`--golden_dir`: compiles each module and compares its stages with the texts in a directory, `DIR/MODULE/STAGE.txt`.

The texts hold no paths, times, addresses or numbers of processes, so equal compilations give equal bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hlo_run.commands.compilation import compiling
from hlo_run.commands.target_choice import choose_target, with_dumped_target
from hlo_run.commands.task import Task
from hlo_run.diff.conditions import (
    MADE_WITH,
    NUMBERS,
    RESOURCES,
    Conditions,
    check_directory,
    conditions_of,
    read_conditions,
    target_hint,
    target_words,
)
from hlo_run.diff.numbers import (
    diff_figures,
    figures_text,
    kernel_figures,
    module_figures,
    read_figures,
    read_tolerances,
    with_kernels_of,
)
from hlo_run.diff.texts import TextDiff, change_lines, diff_texts, record_of, text_of
from hlo_run.errors import GoldenDifference, UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.options import Options, ShowOptions
from hlo_run.options.flag import names
from hlo_run.pass_support.observer import BUFFER_TEXTS, FUSION_ANALYSIS, HLO_INPUT, OPTIMIZED_HLO, PTX, STAGES, THUNK_TEXTS
from hlo_run.pass_support.replacements import file_name
from hlo_run.pipeline.observers.stage_keeper import KernelStageKeeper, StageKeeper
from hlo_run.records import replace
from hlo_run.whole_files import write_problem, write_whole

DIFFERENCES = "golden_differences"
"""The directory of the differences that are too long to print."""
MOST_LINES = 40
# Stages that need no text of a kernel before its PTX.
_OF_MODULES = (OPTIMIZED_HLO, FUSION_ANALYSIS, *BUFFER_TEXTS, *THUNK_TEXTS, PTX)
_SHORT = {"buffers": "buffer-assignment"}
_SOURCE = "source.txt"
_NAME_CHARACTERS = 100


def check_golden_flags(options: Options, files: Sequence[str]) -> list[str]:
    """Return warnings about goldens that were made with other flags than this command's.

    Raises UsageError for unknown stages and tolerances, and for a directory that cannot serve.
    """
    golden_stages(options)
    read_tolerances(options.golden_tolerance)
    if os.path.exists(options.golden_dir) and not os.path.isdir(options.golden_dir):
        raise UsageError(f"--golden_dir={options.golden_dir} is not a directory")
    if not options.update_goldens:
        targets = {target_words(choose_target(with_dumped_target(options, file))) for file in files}
        return check_directory(options, targets, _conditions(options))
    root = Path(os.path.abspath(options.golden_dir))
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(f"--update_goldens: the directory '{options.golden_dir}' cannot be written: permission denied")
    return []


def golden_stages(options: Options) -> tuple[str, ...]:
    """Return the stages to compare, each once; raises UsageError for an unknown one."""
    from hlo_run.pipeline.row_names import check_row_names

    stages: list[str] = []
    for name in names(options.golden_stages):
        stages += (*STAGES, NUMBERS, RESOURCES) if name == "all" else (_SHORT.get(name, name),)
    if not stages:
        raise UsageError("--golden_stages names no stage")
    for stage in stages:
        if stage not in (NUMBERS, RESOURCES, HLO_INPUT, *STAGES):
            check_row_names(dataclasses.replace(options, stage=stage))
    return tuple(dict.fromkeys(stages))


def check_golden(task: Task, module: HloModule) -> None:
    """Compile `module`, and compare its stages with the golden texts or write them. Raises GoldenDifference."""
    stages = golden_stages(task.options)
    # Before the compilation, as the files after this one wait for its name.
    folder = Path(task.options.golden_dir, task.claim(lambda taken: _folder_name(task, module.name, taken)))
    now, golden = _conditions(task.options), read_conditions(folder)
    task.result.golden = {"module": folder.name, "updated": task.options.update_goldens, "stages": []}
    if task.options.update_goldens:
        _check_other_stages(folder, stages, now, golden)
    elif not folder.is_dir():
        _keep(task, [TextDiff(stage, missing="before") for stage in stages])
        _raise_unknown(task, folder, module.name)
    elif golden is not None and golden.target and golden.target != now.target:
        raise _other_target(folder, golden, now)
    texts = _compiled_texts(task, module, stages)
    if task.options.report_html:
        _record_for_page(task, module)
    diffs = [_diff(task, folder, stage, texts[stage]) for stage in stages if stage in texts]
    if task.options.update_goldens:
        _keep(task, diffs)
        _update(task, folder, {diff.name: texts[diff.name] for diff in diffs}, now)
        return
    for diff in diffs:
        if diff.differs and not diff.missing and golden is not None and (versions := now.other_versions(golden, diff.name)):
            diff.because = f"the golden was {versions}"
    _write_long(task, folder.name, diffs)
    _keep(task, diffs)
    # A module that is the same but for its names is worth a line too.
    lines = [line for diff in diffs if diff.summary != "same" or diff.figures for line in _report(diff)]
    different = [diff for diff in diffs if diff.differs]
    missing = sum(diff.missing == "before" for diff in diffs)
    without = f", {missing} without a golden" if missing else ""
    if lines:
        task.console.difference("\n".join(lines))
    verdict = f"{folder.name}: {len(different) - missing} of {len(diffs)} stages differ{without}"
    task.console.verdict(verdict, good=not different, is_result=True)
    if different:
        raise _difference(folder, different, now, golden)


def _conditions(options: Options) -> Conditions:
    return conditions_of(options, choose_target(options), has_resources=RESOURCES in golden_stages(options))


def _keep(task: Task, diffs: Sequence[TextDiff]) -> None:
    assert task.result.golden is not None
    task.result.golden_diffs = list(diffs)
    task.result.golden["stages"] = [record_of(diff) for diff in diffs]


def _difference(folder: Path, diffs: Sequence[TextDiff], now: Conditions, golden: Conditions | None) -> GoldenDifference:
    """Return the error about stages that differ. It has the bucket of the first one, which may have changed the others."""
    changed = [diff.name for diff in diffs if diff.missing != "before"]
    missing = [diff.name for diff in diffs if diff.missing == "before"]
    parts = [f"differs in {', '.join(changed)}"] if changed else []
    parts += [f"has no golden of {', '.join(missing)}"] if missing else []
    flags = now.other_flags(golden) if golden is not None else ""
    notes = (f"the goldens were {flags}",) if flags else ()
    hint = "read the differences above; --update_goldens accepts the new texts" if changed else "--update_goldens writes them"
    what = f"{changed[0]} differs" if changed else "missing"
    return GoldenDifference(f"'{folder.name}' {' and '.join(parts)}", hint=hint, notes=notes, what=what)


def _other_target(folder: Path, golden: Conditions, now: Conditions) -> GoldenDifference:
    message = f"the goldens of '{folder.name}' are for {golden.target}, and this command compiles for {now.target}"
    return GoldenDifference(message, hint=target_hint(golden.target), what="other target")


def _raise_unknown(task: Task, folder: Path, name: str) -> None:
    """Raise GoldenDifference for a module without goldens. Directories for the same file or module tell what was renamed."""
    hint = "--update_goldens writes them"
    same = folder.parent / _plain_name(name)
    if others := _others_of_source(task, folder):
        hint = f"{others}: if the module was renamed, rename that directory, too"
    elif source := (_read(same / _SOURCE) or "").strip():
        hint = f"goldens of a module '{name}' in {source} are in '{same}': if the file was renamed, change its name in {_SOURCE}"
    task.console.verdict(f"{folder.name}: no goldens", good=False, is_result=True)
    raise GoldenDifference(f"'{folder.name}' has no goldens in '{folder.parent}'", hint=hint, what="missing")


def _others_of_source(task: Task, folder: Path) -> str:
    """Return which other directories hold goldens of modules in the same file; empty if none does."""
    source = os.path.basename(task.file)
    found = sorted(path.parent for path in folder.parent.glob(f"*/{_SOURCE}") if _read(path) == f"{source}\n")
    names = ", ".join(f"'{other}'" for other in found if other != folder)
    return f"goldens of a module in {source} are in {names}" if names and source != "-" else ""


def _report(diff: TextDiff) -> list[str]:
    """Return the lines about a stage."""
    if diff.missing:
        return [f"{diff.name}: " + ("no golden" if diff.missing == "before" else "only the golden has this text")]
    return list(text_of(diff, MOST_LINES))


def _write_long(task: Task, module: str, diffs: Sequence[TextDiff]) -> None:
    """Write the differences that are too long to print. Removes what an earlier command has written about the stages."""
    folder = Path(task.folder, DIFFERENCES, module)
    try:
        for diff in diffs:
            path = _file(folder, diff.name)
            if diff.missing or len(change_lines(diff)) <= (0 if diff.because else MOST_LINES):
                path.unlink(missing_ok=True)
                continue
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(str(path), "".join(f"{line}\n" for line in text_of(diff)).encode())
            diff.whole = str(path)
    except OSError as error:
        task.console.err(f"note: long differences are not written: '{folder}': {write_problem(error)}")


def _compiled_texts(task: Task, module: HloModule, stages: Sequence[str]) -> dict[str, str]:
    """Return the text of each stage; empty if the compilation has no such text. `resources` is missing without ptxas."""
    from hlo_run.pipeline.compile import compile_module  # imports the passes

    task = replace(task, options=dataclasses.replace(task.options, report_html=""))
    kept = [stage for stage in stages if stage not in (NUMBERS, RESOURCES, HLO_INPUT)]
    keeper = (StageKeeper if all(stage in _OF_MODULES for stage in kept) else KernelStageKeeper)(kept)
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


def _record_for_page(task: Task, module: HloModule) -> None:
    """Compile `module` once more for the page of `--report_html`, whose kernels have locations, which goldens lack."""
    from hlo_run.pipeline.compile import compile_module  # imports the passes

    shown = {field.name: field.default for field in dataclasses.fields(ShowOptions)}
    quiet = replace(task, options=dataclasses.replace(task.options, **shown))
    with compiling(quiet, module) as (ctx, working):
        task.result.executable = compile_module(replace(ctx, assembles=False), working)


def _folder_name(task: Task, name: str, taken: Collection[str]) -> str:
    """Return the name of a module's directory: its name, and the name of its file if another file has that directory.

    A module on stdin has the directory of its name, whichever file it is from.
    """
    plain = _plain_name(name)
    source = os.path.basename(task.file)
    root, stem = Path(task.options.golden_dir), file_name(source.partition(".")[0])
    number = 0
    while True:
        number += 1
        folder = plain if number == 1 else f"{plain}.{stem}" if number == 2 else f"{plain}.{stem}.{number - 1}"
        if folder not in taken and (source == "-" or _read(root / folder / _SOURCE) in (None, source + "\n")):
            return folder


def _plain_name(name: str) -> str:
    """Return a module's name in the form of a directory's name."""
    plain = file_name(name).strip(".") or "module"
    if len(plain) <= _NAME_CHARACTERS:
        return plain
    return f"{plain[:_NAME_CHARACTERS]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _diff(task: Task, folder: Path, stage: str, text: str) -> TextDiff:
    """Compare a stage with its golden. A missing golden and an empty text are the same."""
    golden = _read(_file(folder, stage))
    if not text or golden is None:
        return diff_texts(stage, golden, text or None) if golden != (text or None) else TextDiff(stage)
    if stage not in (NUMBERS, RESOURCES):
        return diff_texts(stage, golden, text)
    before, after = read_figures(golden), read_figures(text)
    if stage == RESOURCES:
        before = with_kernels_of(before, after)
    figures = diff_figures(before, after, read_tolerances(task.options.golden_tolerance))
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


def _check_other_stages(folder: Path, stages: Sequence[str], now: Conditions, golden: Conditions | None) -> None:
    """Raise UsageError if a directory would hold stages of two targets."""
    if golden is None or golden.target in ("", now.target):
        return
    written = {_file(folder, stage).name for stage in stages}
    kept = sorted(path.stem for path in folder.glob("*.txt") if path.name not in (written | {_SOURCE, MADE_WITH}))
    if kept:
        message = (
            f"'{folder}' also has goldens of {', '.join(kept)} for {golden.target}, and this command compiles for {now.target}"
        )
        raise UsageError(message, hint="add these to --golden_stages, or remove their files")


def _update(task: Task, folder: Path, texts: Mapping[str, str], now: Conditions) -> None:
    """Write the golden texts that differ in any byte, and remove the texts of empty stages. Raises UsageError."""
    changed: list[str] = []
    if not folder.exists() and (others := _others_of_source(task, folder)):
        task.console.err(f"note: {others}: remove them if the module was renamed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if task.file != "-":
            write_whole(str(folder / _SOURCE), f"{os.path.basename(task.file)}\n".encode(errors="surrogateescape"))
        write_whole(str(folder / MADE_WITH), now.text().encode(errors="surrogateescape"))
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
