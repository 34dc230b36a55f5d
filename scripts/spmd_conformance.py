"""Compare how modules are divided between partitions with real XLA:GPU, and their values with those of the undivided modules.

    python3 scripts/venv.py python scripts/spmd_conformance.py FILE_OR_FOLDER.. [--shardy] [--devices 8] [--seed 0] [--keep DIR]
        [--stage partitioned|collectives|fusion|combined] [--every N]

A module of one partition gets random shardings of its parameters and its result, on a mesh of --devices devices: GSPMD's, or
with --shardy those of Shardy, over named axes. A module of several partitions keeps its own. --keep holds each module with its
shardings and XLA's text, and a later run reads them again.
The script prints how many modules have XLA's text after a stage, whatever the names and channels, and how many have the values
of the undivided module there. The stages are the `after_spmd_partitioner` dump, the end of XLA's pipeline
`collective-optimizations`, the module before the fusion passes, and the one with combined collectives. Needs `hlo-run[xla-gpu]`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import random
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

import hlo_run
from hlo_run.backends.tiles import join_results, split_arguments
from hlo_run.cli import run
from hlo_run.errors import HloRunError
from hlo_run.formats.xla_gpu import EMITTERS_ONLY, write_dumps
from hlo_run.hlo.fingerprint import module_fingerprint
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding, tiled
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment
from hlo_run.hlo_passes.collectives.sharding_propagation import ShardingPropagation
from hlo_run.hlo_passes.collectives.shardy_xla import ShardyXla
from hlo_run.hlo_passes.collectives.spmd_partitioning import SpmdPartitioning
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.options import CompileOptions
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.evaluate.evaluate import Reference
from hlo_run.reference.random import RandomEngine
from hlo_run.reference.values import Value
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

# By stage: our `--stage`, and XLA's dump.
_STAGES = {
    "partitioned": ("after_spmd_partitioner", "*.after_spmd_partitioner.txt"),
    "collectives": ("while-loop-trip-count-annotator", "*.conv_canonicalization.after_pipeline-start.*.txt"),
    "fusion": ("rename-instructions", "*.fusion.after_pipeline-start.*.txt"),
    "combined": ("all-reduce-contiguous", "*.async-collective-conversion.after_pipeline-start.*.txt"),
}
_REPLICATED = SingleSharding("replicated")
# Sums are made in another order.
_TOLERANCE = 2e-2


def random_sharding(rng: random.Random, shape: Shape, mesh: tuple[int, ...], is_even: bool) -> SingleSharding | None:
    """Return a sharding of an array that divides some dimensions by axes of the mesh, or None if it divides none."""
    dims = [1] * shape.rank
    axes: list[list[int]] = [[] for _ in dims]
    for axis, count in enumerate(mesh):
        places = [d for d, size in enumerate(shape.dims) if size >= 2 and not (is_even and size % (dims[d] * count))]
        if places and rng.random() < 0.75:
            dim = rng.choice(places)
            dims[dim] *= count
            axes[dim].append(axis)
    used = [axis for group in axes for axis in group]
    rest = [axis for axis in range(len(mesh)) if axis not in used]
    if not used:
        return None
    tiles = TileAssignment(mesh, Iota((math.prod(mesh),), (0,))).transpose([*used, *rest])
    copies = math.prod(mesh[axis] for axis in rest)
    if copies > 1:
        return tiled(tiles.reshape((*dims, copies)), ("replicated",))
    return tiled(tiles.reshape(tuple(dims)), ())


def annotate(module: HloModule, devices: int, seed: str) -> bool:
    """Give the module partitions and random shardings. Returns False if none divides anything."""
    rng = random.Random(seed)
    meshes = [mesh for mesh in ((devices,), (2, devices // 2), (devices // 2, 2), (2, 2, devices // 4)) if 1 not in mesh]
    mesh = rng.choice([mesh for mesh in meshes if math.prod(mesh) == devices])
    is_even = rng.random() < 0.8
    module.attrs.pop("entry_computation_layout", None)
    divided = 0
    for parameter in module.entry.parameters:
        found = random_sharding(rng, parameter.shape, mesh, is_even) if parameter.shape.is_array else None
        if found is not None or rng.random() < 0.3:
            parameter.attrs["sharding"] = found or _REPLICATED
        divided += found is not None
    root = module.entry.root
    if root.shape.is_array and root.opcode != "parameter":
        found = _REPLICATED if rng.random() < 0.5 else random_sharding(rng, root.shape, mesh, is_even=True)
        if found is not None:
            root.attrs["sharding"] = found
    module.attrs["num_partitions"] = devices
    return divided > 0


def annotate_for_shardy(module: HloModule, devices: int, seed: str) -> bool:
    """Give the module partitions and random shardings of Shardy. Returns False if none divides anything."""
    rng = random.Random(seed)
    half = devices // 2
    meshes = [(("a", devices),), (("a", 2), ("b", half)), (("a", half), ("b", 2)), (("a", 2), ("b", 2), ("c", devices // 4))]
    mesh = rng.choice([mesh for mesh in meshes if all(size > 1 for _, size in mesh)])
    is_even = rng.random() < 0.8
    module.attrs.pop("entry_computation_layout", None)
    divided = 0
    for parameter in module.entry.parameters:
        if parameter.shape.is_array and (rng.random() < 0.85 or not divided):
            text, uses_axes = random_axes(rng, parameter.shape, dict(mesh), is_even)
            parameter.attrs["frontend_attributes"] = _attributes(("xla.sdy.sharding", f"#sdy.sharding<@mesh, {text}>"))
            divided += uses_axes
    _annotate_results(module, rng, dict(mesh))
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh)
    module.attrs["frontend_attributes"] = _attributes(("xla.sdy.meshes", f"{{mesh = #sdy.mesh<[{axes}]>}}"))
    module.attrs["num_partitions"] = devices
    return divided > 0


def _attributes(*entries: tuple[str, str]) -> FrontendAttributes:
    return FrontendAttributes(entries)


def random_axes(rng: random.Random, shape: Shape, mesh: dict[str, int], is_even: bool) -> tuple[str, bool]:
    """Return the dimensions of a sharding, as Shardy prints them, and whether they use an axis."""
    counts = [1] * shape.rank
    axes: list[list[str]] = [[] for _ in counts]
    for name, size in mesh.items():
        places = [d for d, extent in enumerate(shape.dims) if extent >= 2 and not (is_even and extent % (counts[d] * size))]
        if places and rng.random() < 0.7:
            dim = rng.choice(places)
            counts[dim] *= size
            axes[dim].append(f'"{name}"')
    dims = ["{" + ", ".join([*group, *(["?"] if rng.random() < 0.15 else [])]) + "}" for group in axes]
    return "[" + ", ".join(dims) + "]", any(axes)


def _annotate_results(module: HloModule, rng: random.Random, mesh: dict[str, int]) -> None:
    """Give some results of the entry the custom call that JAX makes of `out_shardings`."""
    root = module.entry.root
    values = root.operands if root.opcode == "tuple" else (root,)
    made: list[HloInstruction] = []
    for value in values:
        if not value.shape.is_array or rng.random() < 0.5:
            made.append(value)
            continue
        text, _ = random_axes(rng, value.shape, mesh, is_even=True)
        attributes = _attributes(("xla.sdy.sharding", f"#sdy.sharding_per_value<[<@mesh, {text}>]>"))
        target = {"custom_call_target": "xla.sdy.FuncResultSharding", "custom_call_has_side_effect": True}
        call = HloInstruction("result", "custom-call", value.shape, [value], {**target, "frontend_attributes": attributes})
        made.append(module.entry.add(call))
    if root.opcode == "tuple":
        root.operands = made
    else:
        module.entry.root = made[0]


def write_texts_of_xla(text: str, file: Path) -> None:
    """Write XLA:GPU's module after each stage beside a file, or empty files if XLA does not compile it."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [*EMITTERS_ONLY, "--xla_dump_hlo_as_text", "--xla_dump_large_constants", "--xla_dump_hlo_pass_re=.*"]
        with contextlib.suppress(HloRunError):  # the first dumps are there even if a later step fails
            write_dumps(text, file.name, to_text_proto(preset(DEFAULT_TARGET)), flags, None, Path(folder), limit_seconds=200)
        for stage, (_, pattern) in _STAGES.items():
            found = sorted(Path(folder).glob(pattern))
            dumped_file(file, stage).write_text(found[0].read_text() if found else "")


def dumped_file(file: Path, stage: str) -> Path:
    """Return the file with XLA's module after a stage."""
    return file.with_suffix(f".{stage}.txt")


def our_text(file: Path, stage: str = "partitioned") -> str:
    """Return our module after a stage, or "" after an error."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run([str(file), f"--stage={_STAGES[stage][0]}", "--cache=off", "--xla_dump_large_constants"])
    return "" if code else out.getvalue()


def has_same_text(ours: str, theirs: str) -> bool:
    """True if two texts have the same instructions, whatever the names, channels and metadata."""
    return len({_canonical(text) for text in (ours, theirs)}) == 1


def _canonical(text: str) -> str:
    module = hlo_run.parse(re.sub(r"channel_id=\d+", "channel_id=1", text), verified=False)
    for instruction in module.instructions:
        for name in ("metadata", "backend_config", "frontend_attributes"):
            instruction.attrs.pop(name, None)
    module.name = "module"
    module.attrs = {"num_partitions": module.attrs.get("num_partitions", 1)}
    return module_fingerprint(module)


def has_same_values(text: str, later: str = "") -> bool:
    """True if the devices' tiles of the result, joined, are the result of the undivided module.

    `later` is the text of the divided module after more passes, whose values are taken instead of those after the partitioner.
    """
    whole, module = (hlo_run.parse(text, verified=False) for _ in range(2))
    count = int(module.attrs.get("num_partitions", 1))
    arguments = make_fake_arguments(whole, RandomEngine(1))
    expected = Reference(whole).run([arguments] * count, 1, count, 42)[0]
    ctx = PassContext(preset(DEFAULT_TARGET), CompileOptions())
    ShardyXla().apply(ctx, module)
    ShardingPropagation().apply(ctx, module)
    SpmdPartitioning().apply(ctx, module)
    divided = module.divided
    if divided is None:
        return True
    module = hlo_run.parse(later, verified=False) if later else module
    results = Reference(module).run(split_arguments(divided, [arguments] * count, count), 1, count, 42)
    return all(_is_near(expected, result) for result in join_results(divided, results, count))


def _is_near(expected: Value, found: Value) -> bool:
    if isinstance(expected, tuple) and isinstance(found, tuple):
        return len(expected) == len(found) and all(_is_near(a, b) for a, b in zip(expected, found, strict=True))
    one, two = np.asarray(expected), np.asarray(found)
    if one.shape != two.shape:
        return False
    if one.dtype.kind in "iub":
        return bool(np.array_equal(one, two))
    one, two = one.astype(np.complex128), two.astype(np.complex128)
    most = float(np.max(np.abs(one[np.isfinite(one)]), initial=1e-9))
    return bool(np.allclose(one, two, rtol=_TOLERANCE, atol=_TOLERANCE * most, equal_nan=True))


def pairs_of(files: list[Path], devices: int, seed: int, folder: Path, stage: str, is_shardy: bool) -> list[Path]:
    """Write each module with its shardings, and XLA's texts next to it; return the files of those that XLA compiles."""
    found: list[Path] = []
    for file in files:
        module = hlo_run.parse(file.read_text())
        if int(module.attrs.get("replica_count", 1)) != 1:
            continue
        make = annotate_for_shardy if is_shardy else annotate
        if module.attrs.get("num_partitions", 1) == 1 and not make(module, devices, f"{file.name}:{seed}"):
            continue
        target = folder / file.name
        if not dumped_file(target, stage).exists():
            target.write_text(module.to_string())
            write_texts_of_xla(target.read_text(), target)
        if dumped_file(target, stage).read_text():
            found.append(target)
        else:
            print(f"{file.name}: XLA refuses it", file=sys.stderr)
    return found


def main() -> int:
    """Compare all modules and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--devices", type=int, default=8, help="partitions of a module that has one (a power of two)")
    parser.add_argument("--seed", type=int, default=0, help="of the random shardings")
    parser.add_argument("--shardy", action="store_true", help="random shardings of Shardy")
    parser.add_argument("--keep", type=Path, help="a folder for the modules with their shardings, and XLA's texts")
    parser.add_argument("--stage", choices=sorted(_STAGES), default="partitioned", help="where the modules are compared")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth module only")
    arguments = parser.parse_args()
    files = [file for path in arguments.paths for file in (sorted(path.glob("*.hlo")) if path.is_dir() else [path])][
        :: arguments.every
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        pairs = pairs_of(files, arguments.devices, arguments.seed, folder, arguments.stage, arguments.shardy)
        texts, values = 0, 0
        for file in pairs:
            ours = our_text(file, arguments.stage)
            is_equal = bool(ours) and has_same_text(ours, dumped_file(file, arguments.stage).read_text())
            try:
                is_right = has_same_values(file.read_text(), "" if arguments.stage == "partitioned" else ours)
            except HloRunError as error:
                print(f"{file.name}: {error.message}", file=sys.stderr)
                is_right = False
            texts += is_equal
            values += is_right
            if not (is_equal and is_right):
                print(f"{file.name}: {'' if is_equal else 'another text '}{'' if is_right else 'other values'}")
    print(f"{texts} of {len(pairs)} modules have XLA's text, {values} the values of the undivided module")
    return 0


if __name__ == "__main__":
    sys.exit(main())
