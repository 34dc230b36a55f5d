"""The interface to llvmlite: from LLVM IR text to optimised object code for this processor and to callable functions."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hlo_run.cache import open_cache
from hlo_run.containment.board import native
from hlo_run.errors import InternalError, UsageError
from hlo_run.parallel import available_cores, can_fork, run_in_processes

OPTIMIZATION_LEVEL = 2
"""LLVM's level. Level 3 compiles longer and gains nothing on the examples' kernels (`benchmarks/host_engines.py`)."""

# With fewer modules, compiling takes less time than starting processes.
_WORTH_PROCESSES = 4

# ELF's machine numbers of processors.
_ELF_MACHINES = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183}

QUICK = "; compile quickly\n"
"""The first line of a module that LLVM shall hardly optimise."""

OFFERED: dict[str, bytes] = {}
"""Object code that an executable carries, by the digest of its text. It takes precedence over the cache."""

_lock = threading.Lock()
Run = Callable[[int, int, int], None]


@functools.cache
def _binding() -> Any:
    """Return `llvmlite.binding`, initialised once."""
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@functools.cache
def host_processor() -> tuple[str, str]:
    """Return (name, features) of this machine's processor in LLVM's spelling."""
    binding = _binding()
    return str(binding.get_host_cpu_name()), str(binding.get_host_cpu_features().flatten())


@functools.cache
def has_feature(name: str) -> bool:
    """True if the processor has the feature that LLVM calls `name`."""
    return f"+{name}" in host_processor()[1].split(",")


def vector_bits() -> int:
    """Return the vector width in bits that code for this processor should use."""
    if has_feature("avx512bw"):
        return 512
    return 256 if has_feature("avx2") else 128


def version() -> str:
    """Return the version that object code depends on besides the processor."""
    return str(importlib.import_module("llvmlite").__version__)


@functools.cache
def _machine(level: int = OPTIMIZATION_LEVEL) -> Any:
    binding = _binding()
    name, features = host_processor()
    target = binding.Target.from_default_triple()
    # Code and data may be anywhere in memory, so calls and constants must reach beyond 2 GiB.
    return target.create_target_machine(cpu=name, features=features, opt=level, reloc="pic", codemodel="jitdefault", jit=True)


@functools.cache
def _jit() -> Any:
    binding = _binding()
    name, features = host_processor()
    machine = binding.Target.from_default_triple().create_target_machine(cpu=name, features=features, jit=True)
    return binding.create_lljit_compiler(machine)


def compile_object(text: str, kernel: str = "") -> bytes:
    """Return the object code of a module. Raises InternalError if LLVM rejects it. `kernel` is its name in messages."""
    binding = _binding()
    subject = f"kernel '{kernel}'" if kernel else ""
    with _lock, native("LLVM for Host", subject, input_name=f"{kernel or 'host'}.ll", text=text):
        try:
            module = binding.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise InternalError("LLVM rejects the JIT's IR", notes=tuple(lines[:12])) from error
        module.triple = binding.get_default_triple()
        if text.startswith(QUICK):
            return _quick_object(module)
        tuning = binding.create_pipeline_tuning_options(speed_level=OPTIMIZATION_LEVEL)
        tuning.slp_vectorization = False
        tuning.loop_vectorization = True
        tuning.loop_interleaving = False
        tuning.loop_unrolling = False
        builder = binding.create_pass_builder(_machine(), tuning)
        builder.getModulePassManager().run(module, builder)
        return bytes(_machine().emit_object(module))


def _quick_object(module: Any) -> bytes:
    """Return object code after the passes that make code short: registers instead of memory, and no empty blocks."""
    binding, machine = _binding(), _machine(0)
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=0))
    passes = binding.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return bytes(machine.emit_object(module))


def digest_of(text: str) -> str:
    """Return a key of a module's object code that is unique over machines and versions."""
    name, features = host_processor()
    identity = "\n".join((version(), name, features, str(OPTIMIZATION_LEVEL), text))
    return hashlib.sha256(identity.encode()).hexdigest()


def cached_objects(texts: Mapping[str, str], kernels: Mapping[str, str]) -> dict[str, bytes]:
    """Return the object code of modules by digest: offered code, else from the user's cache, else compiled now.

    `kernels` has the names of kernels by digest, for messages.
    """
    cache = open_cache("host-jit")
    found = {digest: OFFERED[digest] for digest in texts if digest in OFFERED}
    for digest in texts:
        if cache and digest not in found and (data := cache.get(digest)) is not None:
            found[digest] = data
    missing = [digest for digest in texts if digest not in found]
    names = [kernels.get(digest, "") for digest in missing]
    for digest, data in zip(missing, compile_objects([texts[digest] for digest in missing], names), strict=True):
        found[digest] = data
        if cache:
            cache.put(digest, data)
    return found


def compile_objects(texts: list[str], kernels: list[str]) -> list[bytes]:
    """Compile modules. Many modules on several cores use processes, as llvmlite lets only one thread into LLVM at a time.

    `kernels` has a name per module, for messages.
    """
    cores = available_cores()
    if len(texts) >= _WORTH_PROCESSES and cores > 1 and can_fork():
        _machine()  # initialised once, before the fork
        return run_in_processes(len(texts), lambda number: compile_object(texts[number], kernels[number]), cores)
    return [compile_object(text, kernel) for text, kernel in zip(texts, kernels, strict=True)]


def offer(objects: Mapping[str, bytes]) -> None:
    """Offer object code by digest, to be used instead of compiling. Raises UsageError for data that is not object code."""
    if not all(_is_object_code(data) for data in objects.values()):
        raise UsageError("the executable's machine code is not this processor's", hint="compile the module again")
    OFFERED.update(objects)


def _is_object_code(data: bytes) -> bool:
    """False for data that cannot be object code of this machine, by its header. Only ELF is checked."""
    number = _ELF_MACHINES.get(platform.machine().lower())
    if not sys.platform.startswith("linux") or number is None:
        return bool(data)
    return len(data) > 64 and data[:6] == b"\x7fELF\x02\x01" and data[18:20] == number.to_bytes(2, "little")


class Loaded:
    """Object code in memory. `run(first, last, state)` is its only function. The code lives as long as this object.

    `key` is the digest of its text, `data` the object code.
    """

    _count = 0

    def __init__(self, key: str, data: bytes) -> None:
        self.key, self.data = key, data
        binding = _binding()
        with _lock, native("LLVM's linker for Host"):
            Loaded._count += 1
            builder = binding.JITLibraryBuilder().add_object_img(data).add_current_process().export_symbol("run")
            try:
                self._tracker = builder.link(_jit(), f"kernel{Loaded._count}")
            except RuntimeError as error:
                raise InternalError("the JIT's object code cannot be linked", notes=(str(error),)) from error
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self.address: int = self._tracker["run"]
        self.run: Run = prototype(self.address)
