"""Choose the modules of a proof: the project's own, and those of a corpus if one is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hlo_run
from gpu.bundle import FUSION, LIBRARY, MODEL
from hlo_run.hlo.fingerprint import module_fingerprint
from hlo_run.hlo.isolate import isolate_instruction
from hlo_run.hlo.printer import FULL

ROOT = Path(__file__).resolve().parents[2]
_MOST_INSTRUCTIONS = 1500  # of a whole program


def programs(corpus: Path | None, folder: Path, most: int) -> list[tuple[Path, str]]:
    """Return (file, kind) of at most `most` modules of each kind. Fusions cut out of modules are written into `folder`."""
    fusions = sorted((ROOT / "tests/data/emitters").glob("*.hlo"))
    models = sorted((ROOT / "examples").glob("*.hlo"))
    if corpus is not None:
        named = {file.name for file in fusions}
        fusions += [file for file in sorted((corpus / "emitters").glob("*.hlo")) if file.name not in named]
        fusions += isolated_fusions(sorted((corpus / "optimized").glob("*.hlo")), folder)
        models += [file for file in sorted((corpus / "models").glob("*.hlo")) if _is_small(file)]
    libraries = sorted((ROOT / "tests/data/cuda").glob("*.hlo"))
    kinds = ((fusions, FUSION), (libraries, LIBRARY), (models, MODEL))
    return [(file, kind) for files, kind in kinds for file in files[:most]]


def isolated_fusions(files: list[Path], folder: Path) -> list[Path]:
    """Write every kLoop and kInput fusion of the modules as `MODULE.FUSION.hlo`, equal ones once. Return the files."""
    known: dict[str, Path] = {}
    for name, text, digest in _cut_out(files):
        if digest not in known:
            known[digest] = folder / f"{name}.hlo"
            known[digest].write_text(text, encoding="utf-8")
    return list(known.values())


def _cut_out(files: list[Path]) -> Iterator[tuple[str, str, str]]:
    for file in files:
        module = hlo_run.parse(file.read_text(encoding="utf-8"), file.name)
        for instruction in module.instructions:
            if instruction.opcode == "fusion" and instruction.attrs["kind"] in ("kLoop", "kInput"):
                isolated = isolate_instruction(instruction)
                yield f"{file.stem}.{instruction.name}", isolated.to_string(FULL), module_fingerprint(isolated)


def _is_small(file: Path) -> bool:
    return sum(" = " in line for line in file.read_text(encoding="utf-8").splitlines()) <= _MOST_INSTRUCTIONS
