"""The command line: turns flags into `Options`, and results into text and an exit code. Only this file prints."""

from __future__ import annotations

from hlo_run.loading import loaded  # isort: skip - before all that takes time

import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from hlo_run.colours import difference_text, error_text, has_colours, verdict_text
from hlo_run.errors import HloRunError, ReaderLeft, UsageError, bug_report, escaped
from hlo_run.options import Options
from hlo_run.options.input_files import expand
from hlo_run.options.module_parts import with_parts
from hlo_run.options.opt import OptFlags
from hlo_run.options.parsing import read_flags
from hlo_run.options.programs import FLAGS, OPT_FLAGS, OWN_OPT_FLAGS, Flags
from hlo_run.options.stages import OPT_STAGE_TEXTS, STAGE_TEXTS
from hlo_run.options.topics import TOPICS, Topic
from hlo_run.version import VERSION, XLA_RELEASE

if TYPE_CHECKING:
    from hlo_run.analysis.cost.side_by_side import XlaDiff
    from hlo_run.containment.relay import Relay
    from hlo_run.reference.compare.findings import Findings

_TYPES: dict[str, click.ParamType[Any]] = {"bool": click.BOOL, "int": click.INT, "float": click.FLOAT, "str": click.STRING}
_INTRODUCTION = """Compile HLO modules as XLA:GPU does, run them, and compare with a reference.

FILE is HLO text (.hlo, .txt; - is stdin) or, with 'hlo-run[xla]' installed, an HLO proto or snapshot (.pb, .pbtxt),
StableHLO or MHLO (.mlir, .stablehlo, .mhlo, .mlirbc). A directory or a pattern ('**/*.hlo') stands for the modules in it. HLO
text may hold several modules with a line '// -----' or '---' between them: FILE#2 is the second.
A .mlir file with kernels or launches of MLIR's gpu dialect is compiled, run, and compared with the interpretation of its IR.

A row is a place in the pipeline: one run of a pass, named after the pass. If a pass runs several times, its second row is
called cse-2, and so on. --list_passes lists the rows. Flags that take ROWS take these names; --v prints what each row changed.

A flag is written --name=value, --name value, -name=value or, for yes and no, --name. A flag that has no effect beside the others
is an error, except --xla_* flags. XLA_FLAGS is read; the command line overrides it.

--help=TOPIC prints a part of this help: triage, goldens, inputs, devices, performance, stages, a section, or one flag.

Exit codes: 0 results agree, 1 results or goldens differ, 2 bad flags, file or plugin, 3 invalid HLO, 4 not supported yet,
5 device error, 6 nothing to compare (--fail_on_vacuous), 70 bug in hlo-run, 130 Ctrl-C, 141 the reader of the output left. Of
several files it is the first code that is not 0, in the order of the files."""
_EXAMPLES = {
    "hlo-run FILE.hlo": "run, and compare with the reference",
    "hlo-run --platform=Host --jobs=0 DIR": "all modules of DIR without a GPU, in parallel",
    "hlo-run --stage=ptx FILE.hlo": "print one stage",
    "hlo-run --sizes=n=1000 KERNEL.mlir": "a module of the gpu dialect, with a size",
    "hlo-run --v=3 --v_format=diff FILE.hlo": "what each row changes",
    "hlo-run --localize FILE.hlo": "the first kernel that is wrong",
    "hlo-run --golden_dir=goldens DIR": "compare the stages with goldens, in CI",
}
_OPT_STAGES_ABOUT = "--platform=gpu --stage=NAME prints one."
_STAGES_ABOUT = "--stage=NAME prints one. The name of a row prints what the row leaves."

_OPT_INTRODUCTION = """Run HLO passes, or a pipeline up to a stage, on a module and print the result.

FILE is one file of HLO text (- is stdin) or of another format that hlo-run reads. A row is a place in the pipeline: one run of
a pass. --list_passes lists the names of passes. The exit codes are those of hlo-run.
XLA_FLAGS is read; the command line overrides it."""
_OPT_EXAMPLES = {
    "hlo-opt --passes=algsimp,cse FILE.hlo": "run two passes",
    "hlo-opt --platform=gpu FILE.hlo": "the optimised module",
    "hlo-opt --platform=gpu --stage=ptx FILE.hlo": "the PTX of the kernels",
    "hlo-opt --split-input-file --passes=dce FILE.hlo": "each module of a file of tests",
    "hlo-opt --list-passes": "the names of all passes",
}


@dataclass(frozen=True)
class _Program:
    """A console script: its name, the introduction of its help, its commonest uses, its stages, its flags, and its topics."""

    name: str
    introduction: str
    examples: Mapping[str, str]
    stages: Mapping[str, str]
    stages_about: str
    flags: Flags
    topics: Mapping[str, Topic]


_INDENT = 2
"""The columns by which click indents what a section holds."""

_HLO_RUN = _Program("hlo-run", _INTRODUCTION, _EXAMPLES, STAGE_TEXTS, _STAGES_ABOUT, FLAGS, TOPICS)
_HLO_OPT = _Program("hlo-opt", _OPT_INTRODUCTION, _OPT_EXAMPLES, OPT_STAGE_TEXTS, _OPT_STAGES_ABOUT, OPT_FLAGS, {})
_STAGES_TOPIC = "stages"


class _Command(click.Command):
    """The command of a program. Its help prints flags by section and as XLA spells them (`--name=VALUE`)."""

    program: _Program

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        program = self.program
        with formatter.section("Examples"):
            formatter.write_dl(list(program.examples.items()), col_max=min(50, formatter.width // 2))
        _write_stages(program, formatter)
        for title, table in program.flags.sections.items():
            _write_flags(program, formatter, title, table)
        topics = [(f"--help={name}", topic.about) for name, topic in program.topics.items()]
        topics.append((f"--help={'|'.join(_section_names(program))}", "The flags of one section above."))
        topics.append((f"--help={_STAGES_TOPIC}", "The stages."))
        topics.append(("--help=FLAG", "One flag."))
        with formatter.section("Other"):
            formatter.write_dl([("--version", "Print the version."), ("--help, -h", "Print this text."), *topics], col_max=38)


def _section_names(program: _Program) -> dict[str, str]:
    return {title.lower(): title for title in program.flags.sections}


def _write_stages(program: _Program, formatter: click.HelpFormatter) -> None:
    with formatter.section("Stages"):
        formatter.write_text(program.stages_about)
        formatter.write_paragraph()
        formatter.write_dl(list(program.stages.items()), col_max=38)


def _write_flags(program: _Program, formatter: click.HelpFormatter, title: str, flags: Mapping[str, Field[Any]]) -> None:
    """Write the names, values, help and defaults of flags as a section."""
    shorts = {name: short for short, name in program.flags.short_names.items()}
    rows: list[tuple[str, str]] = []
    for name, info in flags.items():
        metavar = info.metadata["metavar"]
        value = "" if info.type == "bool" else f"={'|'.join(info.metadata['choices']) or metavar}"
        spelled = f"--{name}{value}" + (f", --{shorts[name]}{value}" if name in shorts else "")
        default = f" [{str(info.default).lower() if info.type == 'bool' else info.default}]" if info.default != "" else ""
        rows.append((_broken(spelled, formatter.width), info.metadata["help"] + default))
    with formatter.section(title):
        formatter.write_dl(rows, col_max=min(38, formatter.width // 2))


def _broken(spelled: str, width: int) -> str:
    """Break the spelling of a flag into lines between its values and names; no other place is free for it."""
    lines = [""]
    for part in re.findall(r"[^|,]+[|,]? ?", spelled):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width - _INDENT * len(lines[:2]):
            lines.append("")
        lines[-1] += part
    return ("\n" + " " * 2 * _INDENT).join(line.rstrip() for line in lines)


def _help(program: _Program, asked: str) -> str:
    """Return the help in the width of the terminal: all of it, or a topic's, a section's or a flag's. Raises UsageError."""
    command = _make_command(program, ())
    context = click.Context(command, info_name=program.name, max_content_width=shutil.get_terminal_size().columns)
    if not asked:
        return command.get_help(context)
    formatter, fields = context.make_formatter(), program.flags.fields
    name = asked.lstrip("-").partition("=")[0]
    name = program.flags.short_names.get(name, name)
    sections = _section_names(program)
    if asked in program.topics:
        topic = program.topics[asked]
        formatter.write_text(topic.about)
        with formatter.section("Commands"):
            formatter.write_dl(list(topic.commands.items()), col_max=min(50, formatter.width // 2))
        _write_flags(program, formatter, "Flags", {flag: fields[flag] for flag in topic.flags})
        formatter.write_paragraph()
        formatter.write_text(f"More: docs/{topic.page}")
    elif asked == _STAGES_TOPIC:
        _write_stages(program, formatter)
    elif asked in sections:
        _write_flags(program, formatter, sections[asked], program.flags.sections[sections[asked]])
    elif name in fields:
        _write_flags(program, formatter, "Flags", {name: fields[name]})
    else:
        topics = ", ".join((*program.topics, _STAGES_TOPIC, *sections))
        raise UsageError(f"--help={asked} is neither a topic nor a flag", hint=f"the topics are {topics}")
    return formatter.getvalue().rstrip("\n")


def _make_command(program: _Program, names: Collection[str]) -> click.Command:
    """Return the command with the flags `names` only: click takes 15 us for each flag, whether or not it is given."""
    parameters: list[click.Parameter] = [click.Argument(["files"], nargs=-1, metavar="FILE...")]
    for name in names:
        info = program.flags.fields[name]
        choices: tuple[str, ...] = info.metadata["choices"]
        kind = click.Choice(choices) if choices else _TYPES[str(info.type)]
        parameters.append(click.Option([f"--{name}"], type=kind, default=info.default))
    command = _Command(program.name, params=parameters, help=program.introduction, callback=_collect, add_help_option=True)
    command.program = program
    return command


def _collect(files: tuple[str, ...], **values: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    return values, files


def _parse(program: _Program, arguments: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Return (values of the flags, files, warnings); raises UsageError.

    `--help`, `--help=TOPIC` and `--version` print and raise SystemExit.
    """
    if helps := [word for word in arguments if word in ("--help", "-h") or word.startswith(("--help=", "-h="))]:
        _stdout(_help(program, helps[0].partition("=")[2]))
        raise SystemExit(0)
    if "--version" in arguments:
        _print_version(program.name)
    raw = read_flags(arguments, os.environ, program.flags)
    fields = program.flags.fields
    command = _make_command(program, {**raw.given, **raw.defaults})
    normal = [f"--{name}={text}" for name, text in raw.given.items()]
    try:
        context = command.make_context(program.name, [*normal, "--", *raw.files], default_map=dict(raw.defaults))
        read, files = command.invoke(context)
    except click.ClickException as error:
        wrong = error.param if isinstance(error, click.BadParameter) else None
        known = fields.get(wrong.name or "") if wrong is not None else None
        hint = known.metadata["help"] if known is not None else "--help lists every flag"
        raise UsageError(error.format_message(), hint=hint) from None
    values = {name: info.default for name, info in fields.items()} | read
    values["other_xla_flags"] = tuple(raw.others.items())
    return values, files, raw.warnings


def parse_arguments(arguments: Sequence[str]) -> tuple[Options, tuple[str, ...], tuple[str, ...]]:
    """Return (options, files, warnings) of hlo-run's command line; see `_parse`."""
    values, files, warnings = _parse(_HLO_RUN, arguments)
    return Options(**values), with_parts(expand(files), values["input_format"]), warnings


def parse_opt_arguments(arguments: Sequence[str]) -> tuple[Options, OptFlags, tuple[str, ...], tuple[str, ...]]:
    """Return (options, flags that only hlo-opt has, files, warnings) of hlo-opt's command line; see `_parse`."""
    values, files, warnings = _parse(_HLO_OPT, arguments)
    own = {name: values.pop(name) for name in OWN_OPT_FLAGS}
    return Options(**values), OptFlags(**own), files, warnings


def _print_version(program: str) -> None:
    from hlo_run.records import IS_COMPILED

    form = "compiled" if IS_COMPILED else "pure Python"
    _stdout(f"{program} {VERSION} ({form}), mirrors XLA:GPU of jaxlib {XLA_RELEASE}")
    raise SystemExit(0)


class PlainConsole:
    """The console for files, pipes and tests: prints text without colour. Escapes control characters, which inputs may hold."""

    records: TextIO | None = None
    """The stream of `record`; None: stdout."""

    def out(self, text: str) -> None:
        """Print to stdout, with a newline at the end."""
        _stdout(escaped(text))

    def artefact(self, text: str) -> None:
        """Print a module, IR or PTX to stdout: to a terminal as `out` does, else exactly, with a newline at the end."""
        _stdout(escaped(text) if sys.stdout.isatty() else text)

    def out_bytes(self, data: bytes) -> None:
        """Write bytes to stdout, after any text before them."""
        with _writing_to_stdout():
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def err(self, text: str) -> None:
        """Print to stderr, with a newline at the end."""
        _stderr(escaped(text))

    def error(self, error: HloRunError) -> None:
        """Print an error to stderr: place, message, source line, notes and hint."""
        _stderr(error.render())

    def verdict(self, text: str, good: bool, is_result: bool = False) -> None:
        """Print whether results agree: to stdout if the text is a result itself, else to stderr."""
        del good
        (self.out if is_result else self.err)(text)

    def difference(self, text: str, is_result: bool = True) -> None:
        """Print the lines of a difference: to stdout if they are a result, else to stderr."""
        (self.out if is_result else self.err)(text)

    def mismatch(self, findings: Findings) -> None:
        """Print the findings about a mismatch to stdout: as tables if it is a terminal, else as text."""
        if _is_terminal(sys.stdout):
            from hlo_run.terminal import show_mismatch  # imports rich: only on a terminal

            with _writing_to_stdout():
                show_mismatch(findings)
            return
        # Costs nothing: findings come from the reference, which is imported already.
        from hlo_run.reference.compare.report import report

        _stdout(escaped(report(findings)))

    def xla_diff(self, diff: XlaDiff) -> None:
        """Print a comparison with XLA to stdout: as tables if it is a terminal, else as text."""
        if _is_terminal(sys.stdout):
            from hlo_run.terminal import show_xla_diff

            with _writing_to_stdout():
                show_xla_diff(diff)
            return
        from hlo_run.analysis.cost.side_by_side import diff_text

        _stdout(escaped(diff_text(diff)))

    def record(self, line: str) -> None:
        """Print a line of `--report_jsonl`."""
        _stdout(escaped(line), self.records)


class ColourConsole(PlainConsole):
    """The console for a terminal: errors, verdicts and differences have colours. The supervisor shows the progress."""

    def error(self, error: HloRunError) -> None:
        """Print an error to stderr, with its first line in bold red."""
        text = error.render()
        _stderr(error_text(text) if has_colours(sys.stderr) else text)

    def verdict(self, text: str, good: bool, is_result: bool = False) -> None:
        """Print a verdict in green or red."""
        colour = has_colours(sys.stdout if is_result else sys.stderr)
        text = escaped(text)
        (_stdout if is_result else _stderr)(verdict_text(text, good) if colour else text)

    def difference(self, text: str, is_result: bool = True) -> None:
        """Print a difference, what came in green and what went in red."""
        colour = has_colours(sys.stdout if is_result else sys.stderr)
        text = escaped(text)
        (_stdout if is_result else _stderr)(difference_text(text) if colour else text)


@contextmanager
def _writing_to_stdout(stream: TextIO | None = None) -> Generator[None]:
    """Turn an error of writing into ReaderLeft (the reader closed the pipe) or UsageError (disk full, stdout closed)."""
    stream = stream or sys.stdout
    if stream is None:  # pyright: ignore[reportUnnecessaryComparison] - Python's value for a closed descriptor
        raise UsageError("stdout is closed, so results cannot be printed")
    try:
        yield
    except OSError as error:
        # What is left in the buffer must not fail again when Python flushes it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):
            raise ReaderLeft from None
        raise UsageError(f"stdout cannot be written: {error.strerror or error}") from None


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _stdout(text: str, records: TextIO | None = None) -> None:
    """Write a line to stdout, or to the stream of the records, which is stdout while `sys.stdout` is another one."""
    stream: TextIO = sys.stdout if records is None else records
    with _writing_to_stdout(stream):
        try:
            stream.write(text + "\n")
        except UnicodeEncodeError:  # the encoding of stdout lacks a character; stderr escapes it by itself
            stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding) + "\n")
        stream.flush()


def _stderr(text: str) -> None:
    # Without stderr the exit code is left to tell what happened. ValueError: Python closed the stream.
    with suppress(OSError, AttributeError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def run(arguments: Sequence[str], supervised: bool = False) -> int:
    """Run hlo-run's command line and return its exit code. Prints errors of the HloRunError family.

    If `supervised`, a process of its own does the work, and a crash of native code is an error as any other.
    """

    def work() -> int:
        try:
            options, files, warnings = parse_arguments(arguments)
        except UsageError as error:
            console_of_streams().error(error)
            _tell_others(arguments, error)
            return error.exit_code
        files = files or _redirected(options.list_passes)
        _warn(warnings)

        def run_here(relay: Relay | None) -> int:
            # Imported late: --help and bad flags must not wait for numpy.
            from hlo_run.commands.dispatch import run_files, tell_others

            console = console_of_streams()
            try:
                if options.report_jsonl != "-":
                    return run_files(options, files, console, relay)
                console.records = relay.at_once if relay is not None and relay.is_relayed else sys.stdout
                with redirect_stdout(sys.stderr):
                    return run_files(options, files, console, relay)
            except UsageError as error:
                console.error(error)
                tell_others(options, error, console)
                return error.exit_code

        return _supervised(run_here, options, files, options.jobs) if supervised and files else run_here(None)

    return exit_code_of(work)


def _tell_others(arguments: Sequence[str], error: UsageError) -> None:
    """Tell the processes that would share the run, if the command line names some, that this one cannot read its flags."""
    from hlo_run.processes.launcher import FlagsFound, launch_of_failed

    flags = FlagsFound.of(arguments)
    if launch_of_failed(flags) is not None:
        from hlo_run.execution.sharing import tell_others

        tell_others(flags, error, lambda text: _stderr(escaped(text)))


def run_opt(arguments: Sequence[str], supervised: bool = False) -> int:
    """Run hlo-opt's command line and return its exit code. Prints errors of the HloRunError family. `supervised`: see `run`."""

    def work() -> int:
        options, flags, files, warnings = parse_opt_arguments(arguments)
        files = files or _redirected(flags.list_passes or flags.list_stages)
        _warn(warnings)

        def run_here(relay: Relay | None) -> int:
            from hlo_run.commands.opt import run_opt

            return run_opt(options, flags, files, console_of_streams(), relay)

        return _supervised(run_here, options, files) if supervised and files else run_here(None)

    return exit_code_of(work)


def _redirected(only_lists: bool) -> tuple[str, ...]:
    """Return the files of a command line without files: stdin if it is redirected from a file (`< FILE`), else none.

    A pipe or a terminal must be asked for (`-`), since a command whose list of files is empty would wait for it.
    """
    try:
        return () if only_lists or not stat.S_ISREG(os.fstat(0).st_mode) else ("-",)
    except OSError:  # stdin is closed
        return ()


def _supervised(work: Callable[[Relay | None], int], options: Options, files: Sequence[str], jobs: int = 1) -> int:
    """Run `work` in worker processes if the system can fork and the flags do not forbid it. `jobs` 0: one per core."""
    if options.one_process or not hasattr(os, "fork"):
        from hlo_run.interrupts import ends_when_interrupted

        with ends_when_interrupted():
            return work(None)
    from hlo_run.containment.supervisor import supervise

    if not jobs:
        from hlo_run.parallel import available_cores

        jobs = available_cores()
    return supervise(lambda relay: exit_code_of(lambda: work(relay)), options.timeout, files, jobs)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        _stderr(escaped(f"warning: {warning}"))


def console_of_streams() -> PlainConsole:
    """Return the console for the present stdout and stderr."""
    return ColourConsole() if has_colours(sys.stdout) or has_colours(sys.stderr) else PlainConsole()


def exit_code_of(work: Callable[[], int]) -> int:
    """Return the exit code of `work`, whatever it raises, and print its error. 1 means only that results differ."""
    try:
        return work()
    except HloRunError as error:
        console_of_streams().error(error)
        return error.exit_code
    except ReaderLeft as error:
        return error.exit_code
    except KeyboardInterrupt:
        _stderr("interrupted")
        return 130
    except Exception as error:  # a bug outside of the files, whatever it raises; Python's own exit code would be 1
        bug = bug_report(error)
        console_of_streams().error(bug)
        return bug.exit_code


loaded()


def main() -> None:
    """Entry point of the console script `hlo-run`."""
    raise SystemExit(run(sys.argv[1:], supervised=True))


def opt_main() -> None:
    """Entry point of the console script `hlo-opt`."""
    raise SystemExit(run_opt(sys.argv[1:], supervised=True))
