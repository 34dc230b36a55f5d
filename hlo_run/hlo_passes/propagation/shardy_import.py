"""Turn Shardy's annotations into shardings of HLO: constraints, results, and manual computations as manual regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import bypass
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.traits import CONTROL_FLOW
from hlo_run.hlo.shardings import shardy
from hlo_run.hlo.shardings.make import MANUAL, REPLICATED, as_tiles, elements_of, for_shape, leaf_count, same_for_all
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo.values.mesh import Mesh
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import NamedSharding, Sharding, SingleSharding, TupleSharding

TO_LOCAL, TO_GLOBAL, RESULT = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape", "xla.sdy.FuncResultSharding"
BARRIER, GROUP = "xla.sdy.PropagationBarrier", "xla.sdy.ShardingGroup"


class _Region(Struct, frozen=True):
    """Where an instruction is: the manual axes there, and a mesh that has them; no axes outside of manual computations."""

    mesh: Mesh | None = None
    manual: tuple[str, ...] = ()

    @property
    def is_all_manual(self) -> bool:
        """True if no axis is left to divide the work further."""
        return self.mesh is not None and all(name in self.manual for name, _ in self.mesh.axes)

    def open_sharding(self, shape: Shape) -> Sharding:
        """Return the sharding of a value of the region whose division is up to the compiler."""
        if self.is_all_manual or self.mesh is None:
            return same_for_all(shape, MANUAL)
        leaves = [shardy.all_open(self.mesh, part.rank if part.is_array else 0, self.manual) for _, part in shape.leaves()]
        return TupleSharding(tuple(leaves)) if shape.is_tuple else leaves[0]


class ShardyImport(Struct):
    """The import of one module; `meshes` are its meshes by name."""

    module: HloModule
    meshes: Mapping[str, Mesh]
    _regions: dict[HloInstruction, _Region] = field(default_factory=dict[HloInstruction, _Region])

    def run(self) -> None:
        """Edit the module in place. Raises Unsupported for annotations that cannot be read or do not fit."""
        self._take_result()
        walked: set[HloComputation] = set()
        self._walk(self.module.entry, _Region(), walked)
        # Those of reducers and the like divide nothing.
        for call in self.module.instructions_of("custom-call"):
            if call.parent not in walked and _text(call, shardy.SHARDING) is not None and len(call.operands) == 1:
                self._bypass(call)
        self._forget_attributes()

    def _walk(self, computation: HloComputation, region: _Region, done: set[HloComputation]) -> None:
        if computation in done:
            return
        done.add(computation)
        order = computation.post_order()
        for instruction in order:
            if _is_call(instruction, TO_LOCAL):
                self._enter(instruction, region)
        for instruction in order:
            if instruction.parent is None:
                continue
            if _is_call(instruction, TO_GLOBAL):
                self._leave(instruction, region)
            else:
                self._annotate(instruction, region)
        for instruction in computation.post_order():
            inner = self._regions.get(instruction) or region
            if inner.manual and instruction.sharding is None:
                instruction.attrs["sharding"] = inner.open_sharding(instruction.shape)
            if instruction.opcode in CONTROL_FLOW:
                for called in instruction.called_computations:
                    self._walk(called, inner, done)

    def _annotate(self, instruction: HloInstruction, region: _Region) -> None:
        """Give an instruction the sharding that its attribute says."""
        if _is_call(instruction, GROUP):
            instruction.parent.remove(instruction) if instruction.parent is not None and not instruction.users else None
            return
        if _is_call(instruction, RESULT, BARRIER):
            self._bypass(instruction)
            return
        if _text(instruction, shardy.SHARDING) is None:
            return
        count = leaf_count(instruction.shape)
        leaves = [shardy.inside(leaf, region.manual) for leaf in self._shardings(instruction, shardy.SHARDING, count)]
        is_constraint = _is_call(instruction, "Sharding")
        says_nothing = all(len(shardy.open_dims(leaf)) == len(leaf.dims) and not _has_axes(leaf) for leaf in leaves)
        if is_constraint and (region.is_all_manual or (says_nothing and leaves[0].dims)):
            self._bypass(instruction)
        elif is_constraint:
            _constrain(instruction, leaves[0])
        elif not (says_nothing and leaves[0].dims):
            instruction.attrs["sharding"] = TupleSharding(tuple(leaves)) if instruction.shape.is_tuple else leaves[0]

    def _enter(self, call: HloInstruction, region: _Region) -> None:
        """Replace a change to local shapes by one custom call per array."""
        inner, shardings = self._inner(call, shardy.IN_SHARDINGS, region, len(call.operands))
        parts: list[HloInstruction] = []
        for operand, shape, sharding in zip(call.operands, _shapes(call.shape), shardings, strict=True):
            outside, within = _both_sides(sharding, region, inner)
            whole = _add(call, "Sharding", operand.shape, operand, outside)
            parts.append(_add(call, "SPMDFullToShardShape", shape, whole, within))
        self._replace(call, parts)
        for part in parts:
            self._regions[part] = inner
            for user in part.users:
                if user.opcode == "call":
                    self._regions[user] = inner

    def _leave(self, call: HloInstruction, region: _Region) -> None:
        """Replace a change to global shapes by one custom call per array."""
        inner, shardings = self._inner(call, shardy.OUT_SHARDINGS, region, len(call.operands))
        wholes: list[HloInstruction] = []
        for operand, shape, sharding in zip(call.operands, _shapes(call.shape), shardings, strict=True):
            self._regions.setdefault(operand, inner)
            if operand.opcode == "get-tuple-element":
                self._regions.setdefault(operand.operands[0], inner)
            outside, within = _both_sides(sharding, region, inner)
            local = _add(call, "Sharding", operand.shape, operand, within)
            wholes.append(_add(call, "SPMDShardToFullShape", shape, local, outside))
        self._replace(call, wholes)

    def _inner(self, call: HloInstruction, name: str, region: _Region, count: int) -> tuple[_Region, Sequence[NamedSharding]]:
        shardings = self._shardings(call, name, count)
        axes = _text(call, shardy.MANUAL_AXES)
        if axes is None or not shardings:
            raise Unsupported(f"{call.custom_call_target} without {shardy.MANUAL_AXES}", call.where)
        try:
            names = shardy.read_manual_axes(axes)
        except ValueError as error:
            raise Unsupported(str(error), call.where) from error
        return _Region(shardings[0].mesh, (*region.manual, *names)), shardings

    def _shardings(self, instruction: HloInstruction, name: str, count: int) -> tuple[NamedSharding, ...]:
        try:
            found = shardy.read_shardings(_text(instruction, name) or "", self.meshes)
        except ValueError as error:
            raise Unsupported(str(error), instruction.where) from error
        if len(found) == 1 < count and instruction.shape.is_tuple:
            found *= count
        if len(found) != count:
            raise Unsupported(f"{name} has {len(found)} shardings for {count} arrays", instruction.where)
        wholes = instruction.operands if name == shardy.IN_SHARDINGS else (instruction,)
        arrays = [shape for value in wholes for _, shape in value.shape.leaves()]
        for shape, leaf in zip(arrays, found, strict=False):
            if shape.is_array and shape.rank != len(leaf.dims) and leaf.mesh.maximal_device is None:
                text = f"{name} has a sharding of {len(leaf.dims)} dimensions for {shape}"
                raise Unsupported(text, instruction.where)
        if name != shardy.SHARDING and any(leaf.unreduced for leaf in found):
            raise Unsupported(f"{name} with unreduced axes", instruction.where)
        # Every device may have the whole sum.
        return tuple(replace(leaf, unreduced=()) for leaf in found)

    def _replace(self, call: HloInstruction, parts: Sequence[HloInstruction]) -> None:
        computation = call.parent
        assert computation is not None
        if not call.shape.is_tuple:
            self.module.replace_uses(call, parts[0])
        else:
            for user in [user for user in call.users if user.opcode == "get-tuple-element"]:
                self.module.replace_uses(user, parts[user.tuple_index])
                computation.remove(user)
            if call.users or call.is_root:
                self.module.replace_uses(call, computation.add(HloInstruction("tuple", "tuple", call.shape, parts)))
        call.control_predecessors = []
        computation.remove(call)

    def _bypass(self, call: HloInstruction) -> None:
        for name in ("sharding", "frontend_attributes"):
            call.attrs.pop(name, None)
        bypass(self.module, call)

    def _take_result(self) -> None:
        """Give the results of the entry the shardings that their custom calls say."""
        entry = self.module.entry
        root = entry.root
        values = root.operands if root.opcode == "tuple" else (root,)
        if not any(_is_call(value, RESULT) for value in values):
            return
        leaves: list[SingleSharding] = []
        old = elements_of(root.sharding) if root.sharding is not None else ()
        for number, value in enumerate(values):
            if _is_call(value, RESULT):
                leaves += elements_of(as_tiles(self._shardings(value, shardy.SHARDING, 1)[0]))
            elif len(old) == len(values):
                leaves.append(old[number])
            else:
                leaves += [REPLICATED] * leaf_count(value.shape)
        if root.opcode == "tuple":
            root.attrs["sharding"] = for_shape(root.shape, leaves)
            for value in dict.fromkeys(value for value in values if _is_call(value, RESULT)):
                self._bypass(value)
            return
        value = root.operands[0]
        self._bypass(root)
        if (
            value.sharding is None
            and len(value.users) == 0
            and _text(value, shardy.SHARDING) is None
            and not _is_call(value, TO_GLOBAL)
        ):
            value.attrs["sharding"] = leaves[0]
        else:
            copy = HloInstruction("copy", "copy", value.shape, [value], {"sharding": leaves[0]}, where=value.where)
            entry.add(copy, is_root=True)

    def _forget_attributes(self) -> None:
        for holder in (self.module, *self.module.instructions):
            found = holder.attrs.get("frontend_attributes")
            if isinstance(found, FrontendAttributes):
                kept = tuple(entry for entry in found.entries if not entry[0].startswith(shardy.PREFIX))
                if isinstance(holder, HloInstruction) and holder in self._regions:
                    kept = tuple(entry for entry in kept if entry[0] != "inlineable")
                if kept:
                    holder.attrs["frontend_attributes"] = FrontendAttributes(kept)
                else:
                    del holder.attrs["frontend_attributes"]


def meshes_of(module: HloModule) -> dict[str, Mesh]:
    """Return the meshes that the header names. Raises Unsupported if they cannot be read."""
    try:
        return shardy.read_meshes(_text(module, shardy.MESHES) or "{}")
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _text(holder: HloInstruction | HloModule, name: str) -> str | None:
    found = holder.attrs.get("frontend_attributes")
    return found.get(name) if isinstance(found, FrontendAttributes) else None


def _is_call(instruction: HloInstruction, *targets: str) -> bool:
    return instruction.opcode == "custom-call" and instruction.custom_call_target in targets


def _has_axes(sharding: NamedSharding) -> bool:
    return any(dim.axes for dim in sharding.dims)


def _both_sides(sharding: NamedSharding, outer: _Region, inner: _Region) -> tuple[NamedSharding, NamedSharding]:
    """Return the shardings outside and inside of a region. The compiler may not divide what manual axes divide."""
    manual = {name for name in inner.manual if name not in outer.manual}
    names = [name for name, _ in sharding.mesh.axes]
    dims = [replace(dim, is_closed=dim.is_closed or any(names[ref.axis] in manual for ref in dim.axes)) for dim in sharding.dims]
    closed = replace(sharding, dims=tuple(dims))
    return shardy.inside(closed, outer.manual), shardy.inside(closed, inner.manual)


def _shapes(shape: Shape) -> Sequence[Shape]:
    return shape.tuple_shapes if shape.is_tuple else (shape,)


def _constrain(call: HloInstruction, sharding: NamedSharding) -> None:
    """Write a sharding, and the dimensions that it leaves open, as GSPMD has them."""
    call.attrs["sharding"] = as_tiles(sharding)
    dims = shardy.open_dims(sharding)
    if dims and elements_of(sharding)[0].kind != "manual":
        call.attrs["backend_config"] = f"unspecified_dims=[{','.join(map(str, dims))}]"


def _add(like: HloInstruction, target: str, shape: Shape, operand: HloInstruction, sharding: NamedSharding) -> HloInstruction:
    assert like.parent is not None
    attributes = {"custom_call_target": target}
    if "metadata" in like.attrs:
        attributes["metadata"] = like.attrs["metadata"]
    made = like.parent.add(HloInstruction("custom-call", "custom-call", shape, [operand], attributes, where=like.where))
    _constrain(made, sharding)
    return made
