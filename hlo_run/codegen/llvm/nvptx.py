"""The wall to llvmlite: LLVM modules and the NVPTX code generator, with types."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hlo_run.errors import InternalError
from hlo_run.target import TargetSpec

TRIPLE = "nvptx64-nvidia-cuda"
DATA_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
_DEFAULT_PTX_VERSION = 86
_WIDE_VECTORS_PTX_VERSION = 88

# The cards LLVM 22 knows from Volta on, with the PTX version each of them needs at least.
_PTX_VERSION_OF_SM = {
    **dict.fromkeys((70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101), _DEFAULT_PTX_VERSION),
    103: 88,
    110: 90,
    120: 87,
    121: 88,
}

# XLA's, minus its two options for the SLP vectoriser: that pass is off here (see `Module.optimize`). XLA hands over the
# inlining threshold with the pipeline; llvmlite (0.50) would keep the low byte of it alone.
_COMMAND_LINE = ("-nvptx-prec-divf32=1", "-bonus-inst-threshold=2", "-inline-threshold=1100")


@dataclass(frozen=True, slots=True)
class Isa:
    """What PTX is written for: `sm_NN`, or its variant `sm_NNa`, and the PTX version times ten."""

    sm: int
    ptx_version: int
    accelerated: bool = False

    @property
    def cpu(self) -> str:
        return f"sm_{self.sm}{'a' * self.accelerated}"


def isa_of(target: TargetSpec, *, accelerated: bool = False) -> Isa:
    """Return the newest card LLVM knows that is not newer than `target`: its PTX runs on the newer ones, too.

    That is not so of the variant with `accelerated` instructions. PTX 8.6 unless the card needs more, or its toolkit knows
    256-bit accesses (10.x from CUDA 12.9 on).
    """
    known = [sm for sm in _PTX_VERSION_OF_SM if sm <= target.sm]
    sm = max(known, default=min(_PTX_VERSION_OF_SM))
    version = _PTX_VERSION_OF_SM[sm]
    if target.is_blackwell and target.toolkit_version >= (12, 9):
        version = max(version, _WIDE_VECTORS_PTX_VERSION)
    return Isa(sm, version, accelerated)


@functools.cache
def _binding() -> Any:
    """Return `llvmlite.binding`, set up once: it costs some 50 ms, which a run that makes no PTX does not pay."""
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    for option in _COMMAND_LINE:
        binding.set_option("hlo-run", option)  # process-wide; LLVM refuses an option given twice
    return binding


@functools.cache
def _machine(isa: Isa, level: int) -> Any:
    target = _binding().Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=isa.cpu, features=f"+ptx{isa.ptx_version}", opt=level)


def llvmlite_version() -> str:
    """Return the version of llvmlite, to which anything cached in LLVM's formats is bound."""
    return str(importlib.import_module("llvmlite").__version__)


class Module:
    """An LLVM module. Methods raise InternalError where LLVM refuses: texts come from our printer or a saved dump."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @classmethod
    def from_text(cls, text: str) -> Module:
        """Parse LLVM IR text; it is not verified yet."""
        try:
            return cls(_binding().parse_assembly(text))
        except RuntimeError as error:
            raise _refused("LLVM cannot parse the IR", error) from error

    @classmethod
    def from_bitcode(cls, bitcode: bytes) -> Module:
        """Read a bitcode file."""
        try:
            return cls(_binding().parse_bitcode(bitcode))
        except RuntimeError as error:
            raise _refused("LLVM cannot read the bitcode", error) from error

    def verify(self) -> None:
        """Raise InternalError if the module breaks a rule of LLVM IR."""
        try:
            self._handle.verify()
        except RuntimeError as error:
            raise _refused("LLVM's verifier refuses the IR", error) from error

    def link(self, other: Module) -> None:
        """Move everything in `other` here; `other` cannot be used any more."""
        try:
            self._handle.link_in(other._handle)
        except RuntimeError as error:
            raise _refused("LLVM cannot link", error) from error

    def defined_functions(self) -> list[str]:
        """Return the names of the functions with a body, in module order."""
        return [str(function.name) for function in self._handle.functions if not function.is_declaration]

    def internalize(self, names: Iterable[str]) -> None:
        """Make functions private to the module, so that they vanish once inlined."""
        for name in names:
            self._handle.get_function(name).linkage = "internal"

    def drop_unreachable(self) -> None:
        """Delete what no public function needs."""
        builder = _pass_builder(_machine(Isa(90, _DEFAULT_PTX_VERSION), 0), 0)
        passes = _binding().create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(self._handle, builder)

    def optimize(self, isa: Isa, level: int) -> None:
        """Run LLVM's default pipeline of `level` (0 to 3), with NVPTX's own passes (reflection, address spaces, ..).

        The SLP vectoriser is off, though XLA has it on: with LLVM 22 it packs nothing in kernels like ours, but
        interleaves their unrolled lanes and takes more time than all other passes together.
        """
        builder = _pass_builder(_machine(isa, level), level)
        builder.getModulePassManager().run(self._handle, builder)

    def assemble(self, isa: Isa, level: int) -> str:
        """Return the module as PTX from its `.version` on (LLVM puts a comment before it); the module is used up by it."""
        ptx = str(_machine(isa, level).emit_assembly(self._handle))
        return ptx[ptx.index(".version") :]

    def __str__(self) -> str:
        return str(self._handle)


def _pass_builder(machine: Any, level: int) -> Any:
    # A pass manager is used up by its run, so builders are not shared.
    tuning = _binding().create_pipeline_tuning_options(speed_level=level)
    tuning.slp_vectorization = False
    return _binding().create_pass_builder(machine, tuning)


def _refused(what: str, error: RuntimeError) -> InternalError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return InternalError(what, notes=tuple(lines[:12]))
