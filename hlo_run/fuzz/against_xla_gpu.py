"""The judge `xla-gpu-compile`: real XLA:GPU compiles the module, and its optimised module must mean what the module means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hlo_run.codegen.llvm.ptxas import find_ptxas
from hlo_run.errors import DeviceError, HloRunError, ParseError, Unsupported
from hlo_run.execution.signatures import Signature, fold
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, XlaCompilation, XlaCrash, compile_with_xla
from hlo_run.fuzz.against_xla_cpu import text_for_xla
from hlo_run.fuzz.case import FAILED, REFUSED, Case, Fault, mismatch
from hlo_run.fuzz.compiling import compiled
from hlo_run.fuzz.defined import open_part
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC_START
from hlo_run.ops.parse import parse
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.target import preset, to_text_proto

NAME = "xla-gpu-compile"
# Values are open, or come from elsewhere. XLA's passes take no bitcasts, and few asynchronous operations.
_ELSEWHERE = opcode_set("custom-call infeed outfeed rng bitcast") | ASYNC_START
_LIMITS = ("UNIMPLEMENTED", "unimplemented", "not supported", "unsupported", "Unsupported", "not implemented")
# Rounding that the module does not ask for is not a fault. The reference needs all elements of constants.
_FLAGS = (*EMITTERS_ONLY, "--xla_allow_excess_precision=false", "--xla_dump_large_constants=true")


class Judge:
    """XLA:GPU's compiler, in one child process per module."""

    def __init__(self, limit_seconds: float = 60.0) -> None:
        self._limit_seconds = limit_seconds
        ptxas = find_ptxas()
        self._cuda: Path | None = ptxas.parent.parent if ptxas is not None else None
        # The last module: the same one is asked about with other arguments.
        self._last: tuple[str, XlaCompilation | Unsupported] | None = None

    def __call__(self, case: Case) -> Iterator[Fault]:
        """Yield XLA's crash or refusal, our refusal of what XLA takes, or the differences that XLA's passes make."""
        if any(i.opcode in _ELSEWHERE for i in case.module.instructions):
            return
        expected = case.expected
        made = self._compiled(case)
        if isinstance(made, Unsupported):
            is_crash = isinstance(made, XlaCrash)
            kind = REFUSED if not is_crash and any(word in str(made) for word in _LIMITS) else FAILED
            yield Fault(kind, Signature(NAME, "crash" if is_crash else "refusal", fold(_words(made))), str(made))
            return
        yield from self._ours(case)
        try:
            module = parse(made.text, "XLA's module", verified=False)
            actual = Reference(module).run([case.arguments], feeds=case.feeds)[0]
        except (Unsupported, DeviceError) as error:
            yield Fault(REFUSED, Signature(NAME, "unsupported", fold(str(error)), "XLA's optimised module"), str(error))
            return
        except ParseError as error:
            yield Fault(FAILED, Signature(NAME, "refusal", fold(str(error)), "XLA's optimised module"), str(error))
            return
        is_open = bool(open_part(case.module, in_range=case.claims is not None))
        if not is_open and (found := case.differences(actual, expected)):
            yield mismatch(NAME, found, details=f"XLA's optimised module:\n{made.text}")

    def _compiled(self, case: Case) -> XlaCompilation | Unsupported:
        """Return XLA's compilation, or its refusal or crash."""
        target = to_text_proto(preset(case.options.target))
        text = text_for_xla(case.module)
        if self._last is None or self._last[0] != text + target:
            try:
                made: XlaCompilation | Unsupported = compile_with_xla(
                    text, "module", target, _FLAGS, self._cuda, self._limit_seconds
                )
            except Unsupported as error:
                made = error
            self._last = (text + target, made)
        return self._last[1]

    def _ours(self, case: Case) -> Iterator[Fault]:
        """Yield our refusal of a module that XLA:GPU compiles."""
        try:
            compiled(case, case.options)
        except Unsupported as error:
            yield Fault(REFUSED, Signature(NAME, "unsupported", fold(str(error)), "hlo-run"), str(error))
        except HloRunError:
            return  # the judge `reference` reports other errors

    def stop(self) -> None:
        """Do nothing: the child processes have ended."""


def _words(error: Unsupported) -> str:
    return error.message.partition(": ")[2] or error.message
