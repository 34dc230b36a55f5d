"""The modules of a GPU proof, compiled beforehand into one zip with an entry for each module.

An entry has the module (`hlo`), its Executable (`hlox`), XLA:GPU's kernel for the same fusion (`xla`), and the module without its
fusions as StableHLO (`stablehlo`), which JAX compiles on the GPU machine. The last two need the XLA compiler of the `dev` extra
and may be missing. Running a bundle needs only numpy, ml_dtypes and pycuda.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

FUSION, LIBRARY, MODEL = "fusion", "library", "model"
# Commands that may become part of a CUDA graph.
_COMMANDS = "FUSION,CUBLAS,CUBLASLT"


@dataclass(frozen=True)
class Entry:
    """One module. `refused` says why it has no executable. `xla` is None if XLA's kernel cannot be compared with ours."""

    name: str
    kind: str
    hlo: str
    hlox: bytes = b""
    refused: str = ""
    xla: dict[str, Any] | None = None
    xla_refused: str = ""
    stablehlo: str = ""


class Bundle:
    """A bundle from a file. Entries are read on demand."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path)
        self.head: dict[str, Any] = json.loads(self._zip.read("index.json"))

    def names(self, kind: str) -> list[str]:
        """Return the names of the entries of a kind, in order."""
        return [row["name"] for row in self.head["entries"] if row["kind"] == kind]

    def entry(self, name: str) -> Entry:
        """Return the entry `name`."""
        row: dict[str, Any] = json.loads(self._zip.read(f"{name}/entry.json"))
        return Entry(**row, hlo=self._text(name, "hlo"), hlox=self._zip.read(f"{name}/hlox"), stablehlo=self._text(name, "mlir"))

    def _text(self, name: str, part: str) -> str:
        return self._zip.read(f"{name}/{part}").decode()


def make_bundle(path: Path, files: Sequence[tuple[Path, str]], target: str, jobs: int) -> dict[str, int]:
    """Compile the files, given as (file, kind), for `target` and write the bundle. Return counts of its contents."""
    rows: list[dict[str, str]] = []
    counts = {"entries": 0, "not compiled": 0, "with XLA's kernel": 0, "with StableHLO": 0}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in _compile_all(files, target, jobs):
            rows.append({"name": entry.name, "kind": entry.kind})
            counts["entries"] += 1
            counts["not compiled"] += bool(entry.refused)
            counts["with XLA's kernel"] += entry.xla is not None
            counts["with StableHLO"] += bool(entry.stablehlo)
            kept = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry)}
            for part, data in (("hlo", kept.pop("hlo")), ("hlox", kept.pop("hlox")), ("mlir", kept.pop("stablehlo"))):
                archive.writestr(f"{entry.name}/{part}", data)
            archive.writestr(f"{entry.name}/entry.json", json.dumps(kept))
        archive.writestr("index.json", json.dumps({"target": target, "entries": rows, "counts": counts}))
    return counts


def _compile_all(files: Sequence[tuple[Path, str]], target: str, jobs: int) -> Iterator[Entry]:
    from hlo_run.errors import HloRunError

    # Never fork, because the caller may have threads.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(compile_entry, file, kind, target) for file, kind in files]
        for (file, kind), future in zip(files, futures, strict=True):
            try:
                yield future.result()
            except (HloRunError, BrokenProcessPool, MemoryError, UnicodeDecodeError) as error:
                # A file that ends its process or is not HLO becomes a row of the table.
                yield Entry(file.stem, kind, "", refused=f"{type(error).__name__}: {error}")


def compile_entry(file: Path, kind: str, target: str) -> Entry:
    """Compile one file. Excess precision is off on both sides, because the reference's bounds assume every rounding."""
    import hlo_run
    from hlo_run.artifact.file import save
    from hlo_run.cache import choose_cache
    from hlo_run.errors import HloRunError
    from hlo_run.formats.write import module_to_bytes
    from hlo_run.hlo.printer import FULL
    from hlo_run.hlo.wrap import wrap_bare_module
    from hlo_run.options import Options
    from hlo_run.pass_support.hlo_pass import PassContext
    from hlo_run.pipeline.compile import compile_module
    from hlo_run.reference.evaluate.devices import DeviceGrid
    from hlo_run.target import preset

    choose_cache("off")
    module = wrap_bare_module(hlo_run.parse(file.read_text(encoding="utf-8"), file.name))
    text = module.to_string(FULL)
    if (devices := DeviceGrid.of(module).size) > 1:
        return Entry(file.stem, kind, text, refused=f"needs {devices} devices")
    graphs = {} if kind == FUSION else {"xla_gpu_enable_command_buffer": _COMMANDS}
    options = Options(target=target, compile_processes=1, xla_allow_excess_precision=False, **graphs)
    try:
        executable = compile_module(PassContext(preset(target), options), module.clone())
    except HloRunError as error:
        return Entry(file.stem, kind, text, refused=error.message)
    entry = Entry(file.stem, kind, text, hlox=save(structs.replace(executable, source_text="", module_text="")))
    try:
        entry = dataclasses.replace(entry, stablehlo=module_to_bytes(without_fusions(module), "stablehlo").decode())
    except HloRunError:
        entry = dataclasses.replace(entry, stablehlo="")
    if kind != FUSION or len(executable.kernels) != 1:
        return entry
    try:
        return dataclasses.replace(entry, xla=_xla_kernel(text, file.name, options))
    except HloRunError as error:
        return dataclasses.replace(entry, xla_refused=error.message)


def without_fusions(module: Any) -> Any:
    """Return a copy of the module with its fusions as calls, because XLA takes no fusions in StableHLO."""
    from hlo_run.hlo.graph import HloInstruction

    copy = module.clone()
    copy.schedule = None
    for fusion in [i for i in copy.instructions if i.opcode == "fusion"]:
        called = {"to_apply": fusion.called["calls"]}
        call = HloInstruction(fusion.name, "call", fusion.shape, list(fusion.operands), called=called, where=fusion.where)
        fusion.parent.add(call, before=fusion)
        copy.replace(fusion, call)
        fusion.parent.remove(fusion)
    return copy


def _xla_kernel(text: str, file: str, options: Any) -> dict[str, Any]:
    """Return the single kernel that XLA emits for the unoptimised module. Raises HloRunError."""
    from hlo_run.codegen.llvm.ptxas import find_ptxas
    from hlo_run.commands.target_choice import target_config
    from hlo_run.errors import Unsupported
    from hlo_run.formats.xla_gpu import EMITTERS_ONLY, compile_with_xla

    ptxas = find_ptxas(options.xla_gpu_cuda_data_dir)
    flags = [*EMITTERS_ONLY, "--xla_disable_all_hlo_passes", "--xla_allow_excess_precision=false"]
    made = compile_with_xla(text, file, target_config(options), flags, ptxas.parent.parent if ptxas else None)
    if len(made.kernels) != 1 or not made.ptx:
        raise Unsupported(f"XLA emits {len(made.kernels)} kernels, not one")
    if made.kernels[0].dynamic_shared_bytes:
        raise Unsupported("XLA's kernel takes dynamic shared memory")
    return structs.asdict(made.kernels[0]) | {"ptx": made.ptx}
