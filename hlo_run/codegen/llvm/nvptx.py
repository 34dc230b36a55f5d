"""The typed interface to llvmlite: LLVM modules and the NVPTX code generator."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from hlo_run.errors import InternalError, UsageError
from hlo_run.target import TargetSpec

TRIPLE = "nvptx64-nvidia-cuda"
DATA_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
_DEFAULT_PTX_VERSION = 86
_WIDE_VECTORS_PTX_VERSION = 88

# The GPUs that LLVM 22 supports, from Volta on, with the lowest PTX version of each (times ten).
_PTX_VERSION_OF_SM = {
    **dict.fromkeys((70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101), _DEFAULT_PTX_VERSION),
    103: 88,
    110: 90,
    120: 87,
    121: 88,
}

# XLA's options without the two of the SLP vectoriser, which is off here (see `Module.optimize`). XLA sets the inlining
# threshold in the pipeline's options, of which llvmlite (0.50) keeps only the low byte.
_COMMAND_LINE = ("-nvptx-prec-divf32=1", "-bonus-inst-threshold=2", "-inline-threshold=1100")


class Isa(Struct, frozen=True):
    """The target of PTX: `sm_NN`, or its architecture-specific variant `sm_NNa`, and the PTX version times ten."""

    sm: int
    ptx_version: int
    accelerated: bool = False

    @property
    def cpu(self) -> str:
        """LLVM's name of the GPU, for example `sm_90a`."""
        return f"sm_{self.sm}{'a' * self.accelerated}"


def isa_of(target: TargetSpec, *, accelerated: bool = False) -> Isa:
    """Return the newest GPU that LLVM supports and that is not newer than `target`. Its PTX runs on newer GPUs too.

    The variant with `accelerated` instructions runs on that GPU only. The PTX version is 8.6, or higher if the GPU needs it.
    It is at least 8.8 for Blackwell with CUDA 12.9 or newer, which has 256-bit accesses.

    Raises UsageError for a GPU that is older than all of them.
    """
    sm = max((sm for sm in _PTX_VERSION_OF_SM if sm <= target.sm), default=None)
    if sm is None:
        has, oldest = (f"{sm // 10}.{sm % 10}" for sm in (target.sm, min(_PTX_VERSION_OF_SM)))
        raise UsageError(
            f"'{target.name}' has compute capability {has}; kernels can be compiled for {oldest} or newer",
            hint="choose a newer GPU with --target or --xla_gpu_target_config_filename",
        )
    version = _PTX_VERSION_OF_SM[sm]
    if target.is_blackwell and target.toolkit_version >= (12, 9):
        version = max(version, _WIDE_VECTORS_PTX_VERSION)
    return Isa(sm, version, accelerated)


@functools.cache
def _binding() -> Any:
    """Return `llvmlite.binding`, initialised at the first call: it takes about 50 ms, which runs without PTX save."""
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    for option in _COMMAND_LINE:
        binding.set_option("hlo-run", option)  # for the whole process; LLVM rejects an option that is set twice
    return binding


class _Limit(Struct):
    """The limit of LLVM's passes in this process; None: not set."""

    passes: int | None = None


_limit = _Limit()


def limit_passes(count: int) -> None:
    """Let LLVM run only the first `count` passes that it can skip, in this process; they are listed on stderr.

    LLVM takes this limit once. Raises UsageError for another limit in the same process.
    """
    if _limit.passes == count:
        return
    if _limit.passes is not None:
        raise UsageError(f"LLVM already has the limit {_limit.passes} in this process", hint="use a new process")
    _binding().set_option("hlo-run", f"-opt-bisect-limit={count}")
    _limit.passes = count


@functools.cache
def _machine(isa: Isa, level: int) -> Any:
    target = _binding().Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=isa.cpu, features=f"+ptx{isa.ptx_version}", opt=level)


def llvmlite_version() -> str:
    """Return the version of llvmlite. Cache keys of data in LLVM's formats must include it."""
    return str(importlib.import_module("llvmlite").__version__)


class Module:
    """An LLVM module. Methods raise InternalError if LLVM rejects the IR, which is from our printer or from a dump."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @classmethod
    def from_text(cls, text: str) -> Module:
        """Parse LLVM IR text. `verify` is a separate step."""
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
            raise _refused("LLVM's verifier rejects the IR", error) from error

    def link(self, other: Module) -> None:
        """Move everything in `other` to this module. `other` cannot be used afterwards."""
        try:
            self._handle.link_in(other._handle)
        except RuntimeError as error:
            raise _refused("LLVM cannot link", error) from error

    def defined_functions(self) -> list[str]:
        """Return the names of the functions with a body, in module order."""
        return [str(function.name) for function in self._handle.functions if not function.is_declaration]

    def internalize(self, names: Iterable[str]) -> None:
        """Make functions private to the module, so that LLVM deletes them after inlining."""
        for name in names:
            self._handle.get_function(name).linkage = "internal"

    def drop_unreachable(self) -> None:
        """Delete functions and globals that no public function needs."""
        builder = _pass_builder(_machine(Isa(90, _DEFAULT_PTX_VERSION), 0), 0)
        passes = _binding().create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(self._handle, builder)

    def optimize(self, isa: Isa, level: int) -> None:
        """Run LLVM's default pipeline of `level` (0 to 3), with NVPTX's own passes (reflection, address spaces, ..).

        The SLP vectoriser is off, unlike in XLA: with LLVM 22 it vectorises nothing in our kernels, but it interleaves
        their unrolled lanes and takes more time than all other passes together.
        """
        builder = _pass_builder(_machine(isa, level), level)
        builder.getModulePassManager().run(self._handle, builder)

    def assemble(self, isa: Isa, level: int) -> str:
        """Return the module as PTX, without LLVM's comment before `.version`. The module cannot be used afterwards."""
        ptx = str(_machine(isa, level).emit_assembly(self._handle))
        return ptx[ptx.index(".version") :]

    def __str__(self) -> str:
        return str(self._handle)


def _pass_builder(machine: Any, level: int) -> Any:
    # A pass manager runs once, so builders are not shared.
    tuning = _binding().create_pipeline_tuning_options(speed_level=level)
    tuning.slp_vectorization = False
    return _binding().create_pass_builder(machine, tuning)


def _refused(what: str, error: RuntimeError) -> InternalError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return InternalError(what, notes=tuple(lines[:12]))
