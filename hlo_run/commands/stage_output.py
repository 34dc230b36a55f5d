"""Writes the text of a stage to stdout or a file, in the format of `--output_format`."""

from __future__ import annotations

from hlo_run.execution.console import Console
from hlo_run.execution.output_files import write_output
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.printer import module_to_string
from hlo_run.options import Options
from hlo_run.pass_support.observer import Observer
from hlo_run.pass_support.print_options import dump_options
from hlo_run.pipeline.observers.stage import StageObserver


class StageOutput:
    """Writes stages to stdout, or to the file of `--output_file`."""

    def __init__(self, options: Options, console: Console) -> None:
        self._options, self._console = options, console
        self._has_output = False

    def observer(self, working: HloModule) -> Observer:
        """Return the observer that writes the stage of the flags, of `working`, the module that is compiled."""
        if self._options.output_format == "hlo":
            return StageObserver(self._options.stage, self.show)
        return StageObserver(self._options.stage, lambda _: self.show_module(working))

    def show(self, text: str) -> None:
        """Write the text of a stage. A second text follows the first in the same file."""
        if not self._options.output_file:
            self._console.artefact(text)
            return
        write_output(self._options.output_file, text.encode() + b"\n", append=self._has_output)
        self._has_output = True

    def show_module(self, module: HloModule) -> None:
        """Write a module in the format of `--output_format`."""
        if self._options.output_format == "hlo":
            self.show(module_to_string(module, dump_options(self._options)).rstrip("\n"))
            return
        from hlo_run.formats.write import module_to_bytes  # slow to import, and only other formats need it

        data = module_to_bytes(module, self._options.output_format)
        if self._options.output_file:
            write_output(self._options.output_file, data)
        else:
            self._console.out_bytes(data)
