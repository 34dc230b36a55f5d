"""Gives a module a number of partitions and random shardings over a mesh, in GSPMD's or in Shardy's form.

A module gets one of six meshes, or sometimes an odd one: of any number of devices, with more tiles than elements along a
dimension, and under GSPMD with the devices in any order. Parameters, results and some values between them are divided along
dimensions that an axis of the mesh names, evenly or not. An axis of stages, as pipelines have it, divides leading dimensions
only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from hlo_run.fuzz.mutations.places import is_plain, open_computations
from hlo_run.hlo.edit import InstructionMaker, has_side_effect
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.hlo.opcodes.traits import ASYNC_DONE, ASYNC_START
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import SingleSharding, tiled
from hlo_run.sharding.values.make import REPLICATED, for_shape, iota_tiles, listed_tiles

STAGE = "stage"
# A value that depends on the number of the device, or data that each device has of its own.
_OF_DEVICES = opcode_set("partition-id replica-id infeed outfeed send recv async-update")
_EVEN, _SHARDY, _INNER = 0.7, 0.4, 0.08


class DeviceMesh(Struct, frozen=True):
    """The axes of a mesh, by name, from major to minor.

    An odd mesh also divides dimensions that are too short, by devices in any order.
    """

    axes: tuple[tuple[str, int], ...]
    is_odd: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of devices along each axis."""
        return tuple(size for _, size in self.axes)

    @property
    def count(self) -> int:
        """The number of devices."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        return " x ".join(f"{name} {size}" for name, size in self.axes)


MESHES = (
    DeviceMesh((("data", 8),)),
    DeviceMesh((("tensor", 4),)),
    DeviceMesh((("data", 4), ("tensor", 2))),
    DeviceMesh((("data", 2), ("tensor", 4))),
    DeviceMesh((("data", 2), ("expert", 2), ("tensor", 2))),
    DeviceMesh(((STAGE, 4),)),
)
ODD_MESHES = tuple(
    DeviceMesh(tuple(axes.items()), is_odd=True)
    for axes in (
        {"data": 2},
        {"data": 3},
        {"data": 5},
        {"data": 2, "tensor": 2},
        {"data": 3, "tensor": 2},
        {"data": 3, "tensor": 4},
        {"data": 2, "expert": 2, "tensor": 4},
    )
)
_ODD, _SHUFFLED = 0.25, 0.3


def shard(module: HloModule, seed: int, mesh: DeviceMesh | None = None, is_shardy: bool | None = None) -> bool:
    """Give a module shardings of a seed, in place, with the mesh and notation if they are given. False if no sharding fits.

    A module of several devices, or with values that depend on the device, fits none; one with arrays of dynamic size does not
    fit Shardy. Fusions become calls, and aliases of
    parameters go: their shapes would differ.
    """
    if not _may_be_divided(module):
        return False
    rng = random.Random(seed * 1_000_003 + 17)
    drawn = rng.choice(MESHES)
    own = random.Random(seed * 1_000_033 + 29)
    mesh = mesh or (own.choice(ODD_MESHES) if own.random() < _ODD else drawn)
    for name in ("entry_computation_layout", "input_output_alias", "buffer_donor"):
        module.attrs.pop(name, None)
    _call_fusions(module)
    is_even = rng.random() < _EVEN and _has_places(module, mesh)
    drawn_notation = rng.random() < _SHARDY
    is_static = not any(any(leaf.dynamic_dims) for i in module.instructions for _, leaf in i.shape.leaves())
    make = _shard_for_shardy if ((drawn_notation and is_static) if is_shardy is None else is_shardy) else _shard_for_gspmd
    if (is_shardy and not is_static) or not make(module, mesh, rng, is_even):
        return False
    module.attrs["num_partitions"] = mesh.count
    return True


def is_of_several_devices(module: HloModule) -> bool:
    """True if the header names several replicas or partitions."""
    return module.replica_count > 1 or module.num_partitions > 1


def _may_be_divided(module: HloModule) -> bool:
    if is_of_several_devices(module) or module.schedule is not None:
        return False
    return not differs_by_device(module) and not any(i.opcode in ASYNC_START | ASYNC_DONE for i in module.instructions)


def differs_by_device(module: HloModule) -> bool:
    """True if a value depends on the device that computes it, or comes from outside."""
    return any(i.opcode in _OF_DEVICES for i in module.instructions)


def _call_fusions(module: HloModule) -> None:
    for fusion in [i for i in module.instructions if i.opcode == "fusion"]:
        computation = fusion.fused_computation
        fusion.opcode = "call"
        fusion.attrs.clear()
        fusion.called = {"to_apply": (computation,)}


def _places(shape: Shape, counts: list[int], axis: tuple[str, int], is_even: bool, least: int = 2) -> list[int]:
    """Return the dimensions of at least `least` that an axis may divide, where others divide them by `counts` already."""
    name, size = axis
    dims = enumerate(shape.dims[:1] if name == STAGE else shape.dims)
    return [d for d, extent in dims if extent >= least and not (is_even and extent % (counts[d] * size))]


def _has_places(module: HloModule, mesh: DeviceMesh) -> bool:
    """True if an axis of the mesh divides a parameter evenly."""
    leaves = [leaf for parameter in module.entry.parameters for _, leaf in parameter.shape.leaves() if is_plain(leaf)]
    return any(_places(leaf, [1] * leaf.rank, axis, is_even=True) for leaf in leaves for axis in mesh.axes)


# GSPMD.


def random_sharding(rng: random.Random, shape: Shape, mesh: DeviceMesh, is_even: bool) -> SingleSharding | None:
    """Return a sharding of an array that divides some dimensions by axes of the mesh, or None if it divides none."""
    dims = [1] * shape.rank
    axes: list[list[int]] = [[] for _ in dims]
    for number, axis in enumerate(mesh.axes):
        places = _places(shape, dims, axis, is_even, least=0 if mesh.is_odd else 2)
        if places and rng.random() < 0.75:
            dim = rng.choice(places)
            dims[dim] *= axis[1]
            axes[dim].append(number)
    used = [axis for group in axes for axis in group]
    rest = [axis for axis in range(len(mesh.axes)) if axis not in used]
    if not used:
        return None
    tiles = iota_tiles((mesh.count,)).reshape(mesh.sizes).transpose([*used, *rest])
    if mesh.is_odd and rng.random() < _SHUFFLED:
        tiles = listed_tiles(np.array(rng.sample(range(mesh.count), mesh.count)))
    copies = math.prod(mesh.sizes[axis] for axis in rest)
    if copies > 1:
        return tiled(tiles.reshape((*dims, copies)), ("replicated",))
    return tiled(tiles.reshape(tuple(dims)), ())


def _shard_for_gspmd(module: HloModule, mesh: DeviceMesh, rng: random.Random, is_even: bool) -> bool:
    divides = False
    for parameter in module.entry.parameters:
        divides |= _annotate(parameter, mesh, rng, is_even, replicated=0.3)
    root = module.entry.root
    if root.opcode != "parameter" and rng.random() < 0.8:
        _annotate(root, mesh, rng, is_even, replicated=0.5)
    for value in _inner_values(module, rng):
        divides |= _annotate(value, mesh, rng, is_even, replicated=0.2)
    return divides


def _annotate(value: HloInstruction, mesh: DeviceMesh, rng: random.Random, is_even: bool, replicated: float) -> bool:
    """Give a value a sharding, of each element of a tuple; `replicated` is the chance that one is not divided."""
    leaves = [leaf for _, leaf in value.shape.leaves()]
    if not leaves or not all(map(is_plain, leaves)):
        return False
    made = [None if rng.random() < replicated else random_sharding(rng, leaf, mesh, is_even) for leaf in leaves]
    if not any(made) and rng.random() < 0.5:
        return False
    value.attrs["sharding"] = for_shape(value.shape, [sharding or REPLICATED for sharding in made])
    return any(made)


def _inner_values(module: HloModule, rng: random.Random) -> Iterator[HloInstruction]:
    """Yield some computed arrays of the entry, of loops and of branches."""
    for computation in open_computations(module):
        for value in computation.post_order():
            if value is computation.root or value.opcode in ("parameter", "get-tuple-element", "call", "custom-call"):
                continue
            if is_plain(value.shape) and not has_side_effect(value) and rng.random() < _INNER:
                yield value


# Shardy.


def random_axes(rng: random.Random, shape: Shape, mesh: DeviceMesh, is_even: bool) -> tuple[str, bool]:
    """Return the dimensions of a sharding, as Shardy prints them, and whether they use an axis."""
    counts = [1] * shape.rank
    axes: list[list[str]] = [[] for _ in counts]
    for axis in mesh.axes:
        places = _places(shape, counts, axis, is_even)
        if places and rng.random() < 0.7:
            dim = rng.choice(places)
            counts[dim] *= axis[1]
            axes[dim].append(f'"{axis[0]}"')
    dims = ["{" + ", ".join([*group, *(["?"] if rng.random() < 0.15 else [])]) + "}" for group in axes]
    return "[" + ", ".join(dims) + "]", any(axes)


def _shard_for_shardy(module: HloModule, mesh: DeviceMesh, rng: random.Random, is_even: bool) -> bool:
    divides = False
    for parameter in module.entry.parameters:
        if is_plain(parameter.shape) and (rng.random() < 0.85 or not divides):
            text, uses_axes = random_axes(rng, parameter.shape, mesh, is_even)
            parameter.attrs["frontend_attributes"] = _attributes("xla.sdy.sharding", f"#sdy.sharding<@mesh, {text}>")
            divides |= uses_axes
    for value in list(_inner_values(module, rng)):
        divides |= _constrain(value, mesh, rng, is_even)
    _annotate_results(module, mesh, rng)
    axes = ", ".join(f'"{name}"={size}' for name, size in mesh.axes)
    module.attrs["frontend_attributes"] = _attributes("xla.sdy.meshes", f"{{mesh = #sdy.mesh<[{axes}]>}}")
    return divides


def _attributes(name: str, text: str) -> FrontendAttributes:
    return FrontendAttributes(((name, text),))


def _constrain(value: HloInstruction, mesh: DeviceMesh, rng: random.Random, is_even: bool) -> bool:
    """Let the users of a value take it from the custom call that JAX makes of `with_sharding_constraint`."""
    text, uses_axes = random_axes(rng, value.shape, mesh, is_even)
    users = list(value.users)
    call = _call(value, "Sharding", text)
    assert value.parent is not None, "a value of a computation"
    value.parent.add(call)
    for user in users:
        user.operands = tuple([call if operand is value else operand for operand in user.operands])
    return uses_axes


def _call(value: HloInstruction, target: str, text: str) -> HloInstruction:
    attributes = _attributes("xla.sdy.sharding", f"#sdy.sharding_per_value<[<@mesh, {text}>]>")
    attrs: dict[str, str | bool | FrontendAttributes] = {"custom_call_target": target, "frontend_attributes": attributes}
    if target != "Sharding":
        attrs["custom_call_has_side_effect"] = True
    return InstructionMaker(attributes=attrs).add("custom-call", value.shape, [value], name="result")


def _annotate_results(module: HloModule, mesh: DeviceMesh, rng: random.Random) -> None:
    """Give some results of the entry the custom call that JAX makes of `out_shardings`."""
    root = module.entry.root
    made: list[HloInstruction] = []
    for value in root.operands if root.opcode == "tuple" else (root,):
        if is_plain(value.shape) and rng.random() < 0.5:
            text, _ = random_axes(rng, value.shape, mesh, is_even=True)
            value = module.entry.add(_call(value, "xla.sdy.FuncResultSharding", text))
        made.append(value)
    if root.opcode == "tuple":
        root.operands = tuple(made)
    else:
        module.entry.root = made[0]
