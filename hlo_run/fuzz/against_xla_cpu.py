"""The judge `xla-cpu`: the values of real XLA:CPU against the reference's."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_run.execution.signatures import Signature, fold
from hlo_run.formats.xla_cpu import XlaCpu
from hlo_run.fuzz.case import FAILED, REFUSED, Case, Fault, mismatch
from hlo_run.fuzz.defined import open_part
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC_START
from hlo_run.hlo.printer import FULL, module_to_string

NAME = "xla-cpu"
# XLA:CPU has no functions for these, or not the ones that run here. Its passes take no bitcasts and its
# conversion to StableHLO no asynchronous operations.
_ELSEWHERE = opcode_set("infeed outfeed custom-call send recv rng partition-id replica-id bitcast") | ASYNC_START
# XLA's converter or compiler does not know what it is asked for.
_LIMITS = ("UNIMPLEMENTED", "unimplemented", "not supported", "unsupported", "Unsupported", "not implemented", "async-done")


class Judge:
    """XLA:CPU in a child process, which serves all cases of this process."""

    def __init__(self, limit_seconds: float = 60.0) -> None:
        self._xla = XlaCpu(limit_seconds)

    def __call__(self, case: Case) -> Iterator[Fault]:
        """Yield XLA's crash or refusal, or the differences of its result."""
        if any(i.opcode in _ELSEWHERE for i in case.module.instructions):
            return
        expected = case.expected
        answer = self._xla.run(text_for_xla(case.module), case.leaves)
        if answer.problem in ("crash", "time-out"):
            yield Fault(FAILED, Signature(NAME, answer.problem, fold(answer.message)), answer.message)
        elif answer.problem:
            is_mlir = answer.message.startswith("<unknown>:0: error")  # StableHLO has rules that HLO does not have
            is_limit = any(word in answer.message for word in _LIMITS) or answer.problem == "convert" or is_mlir
            signature = Signature(NAME, "refusal", fold(answer.message), answer.problem)
            yield Fault(REFUSED if is_limit else FAILED, signature, answer.message)
        elif not open_part(case.module, in_range=case.claims is not None):
            shape = case.module.entry.root.shape
            typed = [r.view(leaf.dtype.numpy) for r, (_, leaf) in zip(answer.results, shape.leaves(), strict=True)]
            if found := case.differences(case.nested(typed), expected):
                yield mismatch(NAME, found)

    def stop(self) -> None:
        """End the child process."""
        self._xla.stop()


def text_for_xla(module: HloModule) -> str:
    """Return the text with calls in place of fusions, and without aliases of parameters.

    XLA's first passes take no fusions. Its conversion to StableHLO crashes on aliases of elements of tuples (docs/findings.md).
    """
    plain = module.clone()
    plain.attrs.pop("input_output_alias", None)
    for fusion in [i for i in plain.instructions if i.opcode == "fusion"]:
        computation = fusion.fused_computation
        fusion.opcode = "call"
        fusion.attrs.clear()
        fusion.called = {"to_apply": (computation,)}
    return module_to_string(plain, FULL)
