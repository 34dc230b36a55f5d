"""`hlo-tool`: small tools around HLO modules, one subcommand each.

A tool is a click command in a file of its own. Its context's `obj` is the console.
It returns its exit code or None.
"""

from __future__ import annotations

from hlo_run.loading import loaded  # isort: skip - before all that takes time

import difflib
import importlib
import shutil
import sys
from collections.abc import Sequence

import click

from hlo_run.cli import console_of_streams, exit_code_of
from hlo_run.errors import UsageError

# Subcommand -> (module with its click command `command`, one line of help). A tool is imported when it is called.
TOOLS: dict[str, tuple[str, str]] = {
    "bisect": ("hlo_run.tools.bisect", "Find the pass, the rewrite or the LLVM pass that breaks a module."),
    "completion": ("hlo_run.tools.completion", "Print what a shell needs to complete flags."),
    "convert": ("hlo_run.tools.convert", "Write a module in another format."),
    "cost": ("hlo_run.tools.cost", "Print flops and bytes accessed, as XLA counts them."),
    "count-ops": ("hlo_run.tools.count_ops", "Print how often each opcode occurs."),
    "diff": ("hlo_run.tools.diff", "Compare two modules, dumps or dump directories."),
    "expand": ("hlo_run.tools.expand", "Replace instructions by the algorithms that they stand for."),
    "extract": ("hlo_run.tools.extract", "Cut out an instruction and what it needs."),
    "fuzz": ("hlo_run.tools.fuzz", "Run random modules and group their failures."),
    "print-indexing": ("hlo_run.tools.print_indexing", "Print the indexing maps of the root."),
    "reduce": ("hlo_run.tools.reduce", "Shrink a module while it keeps its failure."),
    "signature": ("hlo_run.tools.signature", "Print the parameters and the result of modules."),
}


def _command(name: str) -> click.Command:
    command = importlib.import_module(TOOLS[name][0]).command
    assert isinstance(command, click.Command)
    return command


class _Tools(click.Group):
    """The group of subcommands. Its help needs no tool's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in alphabetical order."""
        return sorted(TOOLS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand; None if there is none of this name."""
        if cmd_name not in TOOLS:
            return None
        return _command(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand; raises UsageError for an unknown one."""
        if args and not args[0].startswith("-") and args[0] not in TOOLS:
            close = difflib.get_close_matches(args[0], TOOLS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the tools are {', '.join(sorted(TOOLS))}"
            raise UsageError(f"no tool is called '{args[0]}'", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands with their lines of help."""
        with formatter.section("Tools"):
            formatter.write_dl([(name, TOOLS[name][1]) for name in self.list_commands(ctx)])
        with formatter.section("Examples"):
            formatter.write_dl(list(_EXAMPLES.items()), col_max=30)


_EXAMPLES = {
    "hlo-tool reduce FILE.hlo --run='hlo-run --platform=Host'": "the smallest module that fails alike",
    "hlo-tool bisect FILE.hlo --run='hlo-run --platform=Host'": "the pass and the rewrite that break it",
    "hlo-tool diff OLD.hlo NEW.hlo": "what moved, was added, removed, changed",
    "hlo-tool fuzz --time=600 --keep=DIR": "ten minutes of random modules (also hlo-fuzz)",
    "source <(hlo-tool completion bash)": "complete flags and their values",
}
_HELP = "Tools for HLO modules and their dumps. `hlo-tool NAME --help` explains one of them."
_NAME = "hlo-tool"
_GROUP = _Tools(_NAME, help=_HELP)


def run_tool(arguments: Sequence[str], program: str = _NAME) -> int:
    """Run hlo-tool's command line and return its exit code: the tool's, or 2 for bad flags.

    `program` may be `hlo-TOOL`, a console script that is one tool.
    """
    command = _GROUP if program == _NAME else _command(program.removeprefix("hlo-"))

    def work() -> int:
        try:
            result: object = command.main(
                list(arguments),
                program,
                standalone_mode=False,
                obj=console_of_streams(),
                # Help has the width of the terminal.
                max_content_width=shutil.get_terminal_size().columns,
                help_option_names=["-h", "--help"],
            )
        except click.Abort:  # click's name for Ctrl-C
            raise KeyboardInterrupt from None
        except click.exceptions.NoArgsIsHelpError as error:
            console_of_streams().err(error.format_message())
            return UsageError.exit_code
        except click.ClickException as error:
            of = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else program
            raise UsageError(error.format_message(), hint=f"{of} --help lists the flags") from None
        return result if isinstance(result, int) else 0

    return exit_code_of(work)


loaded()


def main() -> None:
    """Entry point of the console script `hlo-tool`."""
    raise SystemExit(run_tool(sys.argv[1:]))


def fuzz_main() -> None:
    """Entry point of the console script `hlo-fuzz`, which is `hlo-tool fuzz`."""
    raise SystemExit(run_tool(sys.argv[1:], "hlo-fuzz"))
