"""Real XLA:GPU's compiler: what it makes of a module for a card that need not be there. A child process per module."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hlo_run.errors import InternalError, Unsupported, UsageError
from hlo_run.formats import gpu_plugin
from hlo_run.formats.xla import child_environment, last_words, refusal_text, require

INSTALL_HINT = "pip install 'hlo-run[xla-gpu]', or docs/xla_diff.md for a way that JAX does not notice"
# Where the plugin can lie unseen by JAX, which tries every plugin that Python finds.
PLUGIN_FOLDER = Path(sys.prefix, "share", "hlo-run")
# No card, no measuring of which kernel is fastest.
_BASE_FLAGS = ("--xla_gpu_autotune_level=0", "--xla_dump_hlo_as_text")
# XLA's own emitters and libraries alone: nothing of Triton.
EMITTERS_ONLY = (
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_disable_hlo_passes=triton-softmax-rewriter,fusion-block-level-rewriter",
)
_PLUGINS = ("xla_cuda13", "xla_cuda12")
_TOTAL = re.compile(r"^Total bytes: (\d+)", re.MULTILINE)
_THUNK = re.compile(r"^\s*\d+: (k\w+)\s+\[", re.MULTILINE)
_SIZES = r"\[(\d+), (\d+), (\d+)\]"
_LAUNCH = re.compile(rf"\] (\S+) grid: {_SIZES} threads: {_SIZES}\s+shared_memory: (\d+) bytes", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class XlaKernel:
    """One kernel of XLA's: its name, how its thunk launches it, and its dynamic shared memory in bytes."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int


@dataclass(frozen=True, slots=True)
class XlaCompilation:
    """What XLA:GPU made of a module: the optimised module as HLO text, the kinds of its thunks (bodies of loops once) in
    order, the bytes of all its allocations, and its kernels with the PTX that holds them all."""

    text: str
    thunk_kinds: tuple[str, ...]
    memory_bytes: int
    kernels: tuple[XlaKernel, ...] = ()
    ptx: str = ""


def compile_with_xla(text: str, file: str, target: str, flags: Sequence[str], cuda: Path | None) -> XlaCompilation:
    """Compile HLO text for the card that `target`, the text of a `gpu_target_config`, describes.

    `flags` are XLA's; `cuda` is a CUDA directory with ptxas and libdevice, None for where XLA looks itself. Raises UsageError
    where the compiler is not installed, Unsupported for a module that it refuses or dies of.
    """
    plugin = find_plugin()
    with tempfile.TemporaryDirectory(prefix="hlo-run-xla-") as folder:
        description = Path(folder, "target.txtpb")
        description.write_text(target, encoding="utf-8")
        dumps = Path(folder, "dumps")
        where = [f"--xla_gpu_cuda_data_dir={cuda}"] if cuda is not None else []
        _run(plugin, description, text, file, [*where, *_BASE_FLAGS, *_merged(flags), f"--xla_dump_to={dumps}"])
        thunks = _dump(dumps, "*.thunk_sequence.txt", file)
        return XlaCompilation(
            text=_dump(dumps, "*gpu_after_optimizations.txt", file),
            thunk_kinds=tuple(_THUNK.findall(thunks)),
            memory_bytes=sum(map(int, _TOTAL.findall(_dump(dumps, "*-memory-usage-report.txt", file)))),
            kernels=tuple(dict.fromkeys(_kernel(*found.groups()) for found in _LAUNCH.finditer(thunks))),
            ptx=_kernels_ptx(dumps),
        )


def _kernel(name: str, *numbers: str) -> XlaKernel:
    gx, gy, gz, bx, by, bz, shared = map(int, numbers)
    return XlaKernel(name, (gx, gy, gz), (bx, by, bz), shared)


def _kernels_ptx(folder: Path) -> str:
    """Return the PTX with the module's kernels; empty where it has none. Constants are in a file of their own."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ptx"))]
    return next((text for text in texts if ".entry " in text), "")


def find_plugin() -> Path:
    """Return the shared object of XLA's CUDA plugin; raises UsageError."""
    require("jaxlib", "--xla_diff", INSTALL_HINT)
    spec = importlib.util.find_spec("jax_plugins")
    folders = [str(PLUGIN_FOLDER / "jax_plugins"), *((spec.submodule_search_locations or ()) if spec is not None else ())]
    candidates = (Path(folder, name, "xla_cuda_plugin.so") for name in _PLUGINS for folder in folders)
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise UsageError("--xla_diff needs XLA's compiler for CUDA (jax-cuda13-pjrt), which is not installed", hint=INSTALL_HINT)
    return found


def _run(plugin: Path, target: Path, text: str, file: str, flags: Sequence[str]) -> None:
    command = [sys.executable, "-P", gpu_plugin.__file__, str(plugin), str(target)]
    environment = child_environment(" ".join(flags)) | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        done = subprocess.run(command, input=text.encode(), capture_output=True, env=environment, check=False)
    except OSError as error:
        raise InternalError(f"cannot start {sys.executable}: {error}") from None
    message = done.stderr.decode(errors="replace")
    if done.returncode == gpu_plugin.REFUSED:
        raise Unsupported(f"'{file}': XLA:GPU does not compile it: {refusal_text(message)}")
    if done.returncode:
        raise Unsupported(f"'{file}' ends XLA:GPU's compiler: {last_words(message, done.returncode)}")


def _merged(flags: Sequence[str]) -> list[str]:
    """Return the flags with all lists of passes to leave out in one: XLA heeds only the last."""
    prefix = "--xla_disable_hlo_passes="
    names = [flag.removeprefix(prefix) for flag in flags if flag.startswith(prefix)]
    rest = [flag for flag in flags if not flag.startswith(prefix)]
    return [*rest, prefix + ",".join(names)] if names else rest


def _dump(folder: Path, pattern: str, file: str) -> str:
    """Return the one dump of the module itself; others, if there are any, are of modules that XLA made besides."""
    found = sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
    if not found:
        raise Unsupported(f"'{file}': XLA:GPU compiled it and left no {pattern.strip('*.-')}")
    return found[0].read_text(encoding="utf-8")


def environment_flags() -> list[str]:
    """Return the flags of XLA_FLAGS that are for XLA's compiler, which end it where it does not know one."""
    words = os.environ.get("XLA_FLAGS", "").split()
    return [word for word in words if word.startswith("--xla_") and not word.startswith("--xla_dump")]
