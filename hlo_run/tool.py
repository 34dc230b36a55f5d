"""`hlo-tool`: small tools around HLO modules, one subcommand each.

A tool is a click command in a file of its own. Its context's `obj` is the console.
It returns its exit code or None.
"""

from __future__ import annotations

from hlo_run.loading import loaded  # isort: skip - before all that takes time

import importlib
import sys
from collections.abc import Sequence

import click

from hlo_run.cli import console_of_streams, exit_code_of
from hlo_run.errors import UsageError
from hlo_run.garbage_collection import collect_seldom

# Subcommand -> (module with its click command `command`, one line of help). A tool is imported when it is called.
TOOLS: dict[str, tuple[str, str]] = {
    "bisect": ("hlo_run.tools.bisect", "Find the pass, the rewrite or the LLVM pass that breaks a module."),
    "completion": ("hlo_run.tools.completion", "Print what a shell needs to complete flags."),
    "count-ops": ("hlo_run.tools.count_ops", "Print how often each opcode occurs."),
    "diff": ("hlo_run.tools.diff", "Compare two modules, dumps or dump directories."),
    "fuzz": ("hlo_run.tools.fuzz", "Run random modules and group their failures."),
    "reduce": ("hlo_run.tools.reduce", "Shrink a module while it keeps its failure."),
}


class _Tools(click.Group):
    """The group of subcommands. Its help needs no tool's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in alphabetical order."""
        return sorted(TOOLS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand; None if there is none of this name."""
        if cmd_name not in TOOLS:
            return None
        command = importlib.import_module(TOOLS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands with their lines of help."""
        with formatter.section("Tools"):
            formatter.write_dl([(name, TOOLS[name][1]) for name in self.list_commands(ctx)])


_GROUP = _Tools("hlo-tool", help="Tools for HLO modules and their dumps. `hlo-tool NAME --help` explains one of them.")


def run_tool(arguments: Sequence[str]) -> int:
    """Run hlo-tool's command line and return its exit code: that of the tool, 2 for bad flags."""

    def work() -> int:
        try:
            result = _GROUP.main(list(arguments), prog_name="hlo-tool", standalone_mode=False, obj=console_of_streams())
        except click.Abort:  # click's name for Ctrl-C
            raise KeyboardInterrupt from None
        except click.ClickException as error:
            raise UsageError(error.format_message(), hint="hlo-tool NAME --help lists the flags of a tool") from None
        return result if isinstance(result, int) else 0

    return exit_code_of(work)


loaded()


def main() -> None:
    """Entry point of the console script `hlo-tool`."""
    collect_seldom()
    raise SystemExit(run_tool(sys.argv[1:]))


def fuzz_main() -> None:
    """Entry point of the console script `hlo-fuzz`, which is `hlo-tool fuzz`."""
    collect_seldom()
    raise SystemExit(run_tool(["fuzz", *sys.argv[1:]]))
