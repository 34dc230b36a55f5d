"""The wall to llvmlite: LLVM IR text → optimised object code for this processor → functions that can be called."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hlo_run.errors import InternalError, UsageError
from hlo_run.parallel import available_cores, can_fork, run_in_processes

OPTIMIZATION_LEVEL = 2
"""LLVM's level. 3 takes longer to compile and gains nothing on the examples' kernels (`benchmarks/host_engines.py`)."""

_CACHED_OBJECTS = 1000
# Fewer modules are compiled before a process has begun.
_WORTH_PROCESSES = 4

# The numbers of processors in ELF files.
_ELF_MACHINES = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183}

OFFERED: dict[str, bytes] = {}
"""Object code that somebody brought, by the digest of its text; taken before the cache is asked."""

_lock = threading.Lock()
Run = Callable[[int, int, int], None]


@functools.cache
def _binding() -> Any:
    """Return `llvmlite.binding`, set up once."""
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@functools.cache
def host_processor() -> tuple[str, str]:
    """Return (name, features) of this machine's processor, as LLVM spells them."""
    binding = _binding()
    return str(binding.get_host_cpu_name()), str(binding.get_host_cpu_features().flatten())


@functools.cache
def has_feature(name: str) -> bool:
    """True if the processor has the feature that LLVM calls `name`."""
    return f"+{name}" in host_processor()[1].split(",")


def vector_bits() -> int:
    """Return the width of the processor's vector registers, as far as code for it should use them."""
    if has_feature("avx512bw"):
        return 512
    return 256 if has_feature("avx2") else 128


def version() -> str:
    """Return the versions that object code depends on besides the processor."""
    return str(importlib.import_module("llvmlite").__version__)


@functools.cache
def _machine() -> Any:
    binding = _binding()
    name, features = host_processor()
    target = binding.Target.from_default_triple()
    # Code and data may lie anywhere in memory: calls and constants must reach beyond 2 GiB.
    return target.create_target_machine(
        cpu=name, features=features, opt=OPTIMIZATION_LEVEL, reloc="pic", codemodel="jitdefault", jit=True
    )


@functools.cache
def _jit() -> Any:
    binding = _binding()
    name, features = host_processor()
    machine = binding.Target.from_default_triple().create_target_machine(cpu=name, features=features, jit=True)
    return binding.create_lljit_compiler(machine)


def compile_object(text: str) -> bytes:
    """Return the object code of a module; raises InternalError where LLVM refuses it."""
    binding = _binding()
    with _lock:
        try:
            module = binding.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise InternalError("LLVM refuses the JIT's IR", notes=tuple(lines[:12])) from error
        module.triple = binding.get_default_triple()
        tuning = binding.create_pipeline_tuning_options(speed_level=OPTIMIZATION_LEVEL)
        tuning.slp_vectorization = False
        tuning.loop_vectorization = True
        tuning.loop_interleaving = False
        tuning.loop_unrolling = False
        builder = binding.create_pass_builder(_machine(), tuning)
        builder.getModulePassManager().run(module, builder)
        return bytes(_machine().emit_object(module))


def digest_of(text: str) -> str:
    """Return what tells a module's object code from all others, on all machines and with all versions."""
    name, features = host_processor()
    identity = "\n".join((version(), name, features, str(OPTIMIZATION_LEVEL), text))
    return hashlib.sha256(identity.encode()).hexdigest()


def cached_objects(texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return the object code of modules by their digests, from what was offered or the user's cache as far as it is there."""
    directory = _cache_directory()
    found = {digest: OFFERED[digest] for digest in texts if digest in OFFERED}
    files = {digest: directory / f"{digest[:40]}.o" for digest in texts if digest not in found} if directory else {}
    found |= {digest: data for digest, file in files.items() if (data := _read(file, digest)) is not None}
    missing = [digest for digest in texts if digest not in found]
    for digest, data in zip(missing, compile_objects([texts[digest] for digest in missing]), strict=True):
        found[digest] = data
        if directory:
            _write(files[digest], digest, data)
    if directory and missing:
        _forget_oldest(directory)
    return found


def compile_objects(texts: list[str]) -> list[bytes]:
    """Compile modules one by one; many, and on several cores, in processes: llvmlite lets one thread at a time into LLVM."""
    cores = available_cores()
    if len(texts) >= _WORTH_PROCESSES and cores > 1 and can_fork():
        _machine()  # set up once, before there are copies
        try:
            return run_in_processes(len(texts), lambda number: compile_object(texts[number]), cores)
        except InternalError:
            pass  # the error, if it is one of a module, comes again below
    return [compile_object(text) for text in texts]


def _cache_directory() -> Path | None:
    """Return where object code is kept, None without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "hlo-run" / "host-jit"
    except RuntimeError:
        return None


def _read(file: Path, digest: str) -> bytes | None:
    """Return the object code in a file of the cache; None if there is none, or it is not whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    head, data = content[:64], content[64:]
    return data if head == hashlib.sha256(digest.encode() + data).hexdigest().encode() else None


def _write(file: Path, digest: str, data: bytes) -> None:
    """Put object code into the cache; where that cannot be done, it is made again next time."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as temporary:
            temporary.write(hashlib.sha256(digest.encode() + data).hexdigest().encode() + data)
        os.replace(temporary.name, file)
    except OSError:
        pass


def _forget_oldest(directory: Path) -> None:
    """Keep the cache from growing for ever."""
    try:
        files = list(directory.iterdir())
        for item in sorted(files, key=lambda item: item.stat().st_mtime)[: max(0, len(files) - _CACHED_OBJECTS)]:
            item.unlink(missing_ok=True)
    except OSError:
        pass


def offer(objects: Mapping[str, bytes]) -> None:
    """Let these be used instead of compiling what has their digests; raises UsageError for what is no object code."""
    if not all(_is_object_code(data) for data in objects.values()):
        raise UsageError("the executable's machine code is not this processor's", hint="compile the module again")
    OFFERED.update(objects)


def _is_object_code(data: bytes) -> bool:
    """False for what cannot be object code of this machine, by its head; only ELF is looked at."""
    number = _ELF_MACHINES.get(platform.machine().lower())
    if not sys.platform.startswith("linux") or number is None:
        return bool(data)
    return len(data) > 64 and data[:6] == b"\x7fELF\x02\x01" and data[18:20] == number.to_bytes(2, "little")


class Loaded:
    """Object code in memory; `run(first, last, state)` is its only function. The code lives as long as this object.

    `key` is the digest of its text, `data` the object code.
    """

    _count = 0

    def __init__(self, key: str, data: bytes) -> None:
        self.key, self.data = key, data
        binding = _binding()
        with _lock:
            Loaded._count += 1
            builder = binding.JITLibraryBuilder().add_object_img(data).add_current_process().export_symbol("run")
            try:
                self._tracker = builder.link(_jit(), f"kernel{Loaded._count}")
            except RuntimeError as error:
                raise InternalError("the JIT's object code cannot be linked", notes=(str(error),)) from error
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self.address: int = self._tracker["run"]
        self.run: Run = prototype(self.address)
