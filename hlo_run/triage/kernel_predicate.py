"""Asks whether a dump of kernel IR compiles: the failure of the rows after the dump's row, of LLVM, or of ptxas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from hlo_run.cli import parse_arguments
from hlo_run.errors import HloRunError
from hlo_run.execution.signatures import signature_of
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.replacements import read_kernel_dump
from hlo_run.pipeline.kernels import compile_kernel_ir
from hlo_run.target import preset
from hlo_run.triage.predicates import RunPredicate


class KernelPredicate(Struct, frozen=True):
    """Compiles a dump with the flags of `run`, for the GPU that the dump names."""

    run: RunPredicate

    def ask(self, path: str, extra: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        """Return the bucket of the failure, or nothing if the dump compiles; to be called in a fork."""
        del environment
        options, _, _ = parse_arguments([*self.run.flags, *extra])
        if options.custom_calls:
            from hlo_run.commands.custom_call_files import load_custom_calls

            load_custom_calls(options.custom_calls)
        try:
            given = read_kernel_dump(path)
            compile_kernel_ir(PassContext(preset(given.target), options), given)
        except HloRunError as error:
            return signature_of(error.__cause__ or error).bucket
        return ""

    def command(self, path: str, extra: Sequence[str] = ()) -> str:
        """Return the command that shows the failure."""
        return self.run.command(path, (*extra, "--stage=ptx"))
