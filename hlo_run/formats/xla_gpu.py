"""Compile a module with real XLA:GPU for a GPU that need not be present, in one child process per module."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hlo_run.containment.board import native
from hlo_run.containment.children import run_command, temporary_folder
from hlo_run.containment.crash import reproducer_notes
from hlo_run.errors import InternalError, Unsupported, UsageError
from hlo_run.formats import gpu_plugin
from hlo_run.formats.spelling import for_installed, installed_release, target_for
from hlo_run.formats.xla import child_environment, last_words, refusal_text, require

INSTALL_HINT = "pip install 'hlo-run[xla-gpu]', or docs/xla_diff.md for a way that JAX does not notice"
# A folder for the plugin where JAX does not find it: JAX loads every plugin on Python's path.
PLUGIN_FOLDER = Path(sys.prefix, "share", "hlo-run")
# Autotuning needs a GPU.
_BASE_FLAGS = ("--xla_gpu_autotune_level=0",)
# Flags that disable Triton: only XLA's own emitters and libraries are used.
EMITTERS_ONLY = (
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_disable_hlo_passes=triton-softmax-rewriter,fusion-block-level-rewriter",
)
_PLUGINS = ("xla_cuda13", "xla_cuda12")
_TOTAL = re.compile(r"^Total bytes: (\d+)", re.MULTILINE)
_THUNK = re.compile(r"^\s*\d+: (k\w+)\s+\[", re.MULTILINE)
_SIZES = r"\[(\d+), (\d+), (\d+)\]"
_LAUNCH = re.compile(rf"\] (\S+) grid: {_SIZES} threads: {_SIZES}\s+shared_memory: (\d+) bytes", re.MULTILINE)


class XlaCrash(Unsupported):
    """XLA's compiler crashed or took too long, where `Unsupported` says that it refused a module."""


class XlaKernel(Struct, frozen=True):
    """One kernel of XLA: its name, its launch dimensions, and its dynamic shared memory in bytes."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int


class XlaCompilation(Struct, frozen=True):
    """XLA:GPU's compilation of a module: the optimised module as HLO text, the kinds of its thunks in order (loop bodies
    once), the bytes of all its allocations, its kernels, and the PTX with all of them."""

    text: str
    thunk_kinds: tuple[str, ...]
    memory_bytes: int
    kernels: tuple[XlaKernel, ...] = ()
    ptx: str = ""


def compile_with_xla(
    text: str, file: str, target: str, flags: Sequence[str], cuda: Path | None, limit_seconds: float | None = None
) -> XlaCompilation:
    """Compile HLO text for the GPU that `target`, the text of a `gpu_target_config`, describes.

    `flags` are XLA's; `cuda` is a CUDA directory with ptxas and libdevice, or None for XLA's default. Raises UsageError
    if the compiler is not installed, Unsupported for a module that it refuses, its subclass XlaCrash for one that crashes it
    or takes longer than `limit_seconds`.
    """
    with temporary_folder("hlo-run-xla-") as folder:
        dumps = Path(folder, "dumps")
        write_dumps(
            text, file, target, [*flags, "--xla_dump_hlo_as_text", "--xla_dump_emitter_re=^ptx$"], cuda, dumps, limit_seconds
        )
        thunks = _dump(dumps, "*.thunk_sequence.txt", file)
        return XlaCompilation(
            text=_dump(dumps, "*gpu_after_optimizations.txt", file),
            thunk_kinds=tuple(_THUNK.findall(thunks)),
            memory_bytes=sum(map(int, _TOTAL.findall(_dump(dumps, "*-memory-usage-report.txt", file)))),
            kernels=tuple(dict.fromkeys(_kernel(*found.groups()) for found in _LAUNCH.finditer(thunks))),
            ptx=_kernels_ptx(dumps),
        )


def write_dumps(
    text: str,
    file: str,
    target: str,
    flags: Sequence[str],
    cuda: Path | None,
    dumps: Path,
    limit_seconds: float | None = None,
) -> None:
    """Compile HLO text as `compile_with_xla` does, and leave XLA's dumps in the directory `dumps`. Raises the same errors."""
    plugin = find_plugin()
    where = [f"--xla_gpu_cuda_data_dir={cuda}"] if cuda is not None else []
    with temporary_folder("hlo-run-xla-") as folder:
        description = Path(folder, "target.txtpb")
        description.write_text(target_for(target, installed_release()), encoding="utf-8")
        _run(plugin, description, text, file, [*where, *_BASE_FLAGS, *_merged(flags), f"--xla_dump_to={dumps}"], limit_seconds)


def _kernel(name: str, *numbers: str) -> XlaKernel:
    gx, gy, gz, bx, by, bz, shared = map(int, numbers)
    return XlaKernel(name, (gx, gy, gz), (bx, by, bz), shared)


def _kernels_ptx(folder: Path) -> str:
    """Return the PTX with the module's kernels, or "". Constants are in a file without a kernel."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ptx"))]
    return "\n".join(text for text in texts if ".entry " in text)


def find_plugin(who: str = "--xla_diff") -> Path:
    """Return the path of XLA's CUDA plugin; raises UsageError, which says that `who` needs it, if it is not installed."""
    require("jaxlib", who, INSTALL_HINT)
    spec = importlib.util.find_spec("jax_plugins")
    folders = [str(PLUGIN_FOLDER / "jax_plugins"), *((spec.submodule_search_locations or ()) if spec is not None else ())]
    candidates = (Path(folder, name, "xla_cuda_plugin.so") for name in _PLUGINS for folder in folders)
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        raise UsageError(f"{who} needs XLA's compiler for CUDA (jax-cuda13-pjrt), which is not installed", hint=INSTALL_HINT)
    return found


def _run(plugin: Path, target: Path, text: str, file: str, flags: Sequence[str], limit_seconds: float | None) -> None:
    text = for_installed(text)
    command = [sys.executable, "-P", gpu_plugin.__file__, str(plugin), str(target)]
    environment = child_environment(" ".join(flags)) | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        with native("XLA:GPU's compiler", f"'{file}'", input_name="module.hlo", text=text):
            done = run_command(command, text.encode(), environment, limit_seconds)
    except subprocess.TimeoutExpired:
        raise XlaCrash(f"'{file}': XLA:GPU's compiler takes more than {limit_seconds:g} s") from None
    except OSError as error:
        raise InternalError(f"cannot start {sys.executable}: {error}") from None
    message = done.stderr.decode(errors="replace")
    if done.returncode == gpu_plugin.REFUSED:
        raise Unsupported(f"'{file}': XLA:GPU does not compile it: {refusal_text(message)}")
    if done.returncode:
        notes = reproducer_notes("xla-gpu", {"module.hlo": text.encode(), "stderr.txt": message.encode()})
        raise XlaCrash(f"'{file}' crashes XLA:GPU's compiler: {last_words(message, done.returncode)}", notes=notes)


def _merged(flags: Sequence[str]) -> list[str]:
    """Return the flags with all `--xla_disable_hlo_passes` merged into one, as XLA uses only the last."""
    prefix = "--xla_disable_hlo_passes="
    names = [flag.removeprefix(prefix) for flag in flags if flag.startswith(prefix)]
    rest = [flag for flag in flags if not flag.startswith(prefix)]
    return [*rest, prefix + ",".join(names)] if names else rest


def _dump(folder: Path, pattern: str, file: str) -> str:
    """Return the dump of the module itself; other dumps are of helper modules of XLA."""
    found = sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
    if not found:
        raise Unsupported(f"'{file}': XLA:GPU compiled it, but wrote no {pattern.strip('*.-')}")
    return found[0].read_text(encoding="utf-8")


def environment_flags() -> list[str]:
    """Return the flags in XLA_FLAGS that are for XLA's compiler; an unknown flag makes it abort."""
    words = os.environ.get("XLA_FLAGS", "").split()
    return [word for word in words if word.startswith("--xla_") and not word.startswith("--xla_dump")]
