"""Parse meshes, axes of a mesh, replica groups and iota device lists."""

from __future__ import annotations

from hlo_run.errors import Unsupported
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.text import at_attribute, comma_list, int_lists, parse_integer, string_value
from hlo_run.hlo.values.mesh import AxisRef, Mesh, axes_problem
from hlo_run.hlo.values.replica_groups import MeshGroups, ReplicaGroups
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment

_MAX_DEVICES = 1 << 20


def parse_replica_groups(lexer: Lexer) -> ReplicaGroups:
    """Read `{{0,1},{2,3}}`, `[2,2]<=[4]` or `mesh['x'=2] {'x'}`."""
    lexer.advance()
    if lexer.kind == "ident" and lexer.value in ("mesh", "maximal_mesh"):
        return ReplicaGroups(_mesh_groups(lexer))
    if lexer.value == "[":
        return ReplicaGroups(_tiles(lexer))
    return ReplicaGroups(int_lists(lexer))


def _mesh_groups(lexer: Lexer) -> MeshGroups:
    start = lexer.start
    mesh = device_mesh(lexer)
    axes = comma_list(lexer, "{", "}", lambda: axis_ref(lexer, mesh))
    problem = mesh.problem() or axes_problem(axes, mesh)
    if problem:
        raise lexer.error(problem, start)
    _check_count(lexer, mesh.size, start)
    return MeshGroups(mesh, axes)


def _tiles(lexer: Lexer) -> TileAssignment:
    """Read `[2,2]<=[4]`; the current token is the `[`."""
    start = lexer.start
    extents = dims(lexer)
    if not lexer.take("<="):
        raise lexer.error("expects an iota tile assignment like [2,2]<=[4], not a list of devices", start)
    order = iota(lexer)
    tiles = TileAssignment(extents, order)
    if len(extents) != 2:
        raise lexer.error(f"replica groups have 2 dimensions (groups, members), not {len(extents)}", start)
    if order.count != tiles.count or min(extents) < 1:
        raise lexer.error(f"{tiles.count} tiles do not match the devices of {tiles}", start)
    _check_count(lexer, tiles.count, start)
    return tiles


def _check_count(lexer: Lexer, count: int, start: int) -> None:
    if count > _MAX_DEVICES:
        raise Unsupported(f"replica groups of {count} devices exceed the limit of 2^20 devices", lexer.where(start))


def dims(lexer: Lexer) -> tuple[int, ...]:
    """Read `[2,2]`; raises ParseError for an empty list."""
    found = comma_list(lexer, "[", "]", lambda: parse_integer(lexer))
    if not found:
        raise lexer.error("expects an integer, but sees ']'")
    return found


def iota(lexer: Lexer) -> Iota:
    """Read `[4]` or `[2,2]T(1,0)`; the current token is the `[`. The permutation is required above rank 1."""
    extents = dims(lexer)
    if len(extents) == 1:
        return Iota(extents)
    start = lexer.start
    if not (lexer.kind == "ident" and lexer.value == "T"):
        raise lexer.error("expected 'T(' to start sharding devices iota_transpose_perm")
    lexer.advance()
    perm = comma_list(lexer, "(", ")", lambda: parse_integer(lexer))
    outside = next((dim for dim in perm if not 0 <= dim < len(extents)), None)
    if outside is not None:
        message = f"Out of range iota minor_to_major value {outside}, expecting value in range [0, {len(extents)})"
        raise lexer.error(message, start)
    if len(perm) != len(extents):
        message = "iota_transpose_perm should have the same rank as iota_reshape_dims"
        raise lexer.error(f"{message} : expected {len(extents)}, saw {len(perm)}.", start)
    if len(set(perm)) != len(perm):
        raise lexer.error("iota_transpose_perm must name each dimension once", start)
    return Iota.canonical(extents, perm)


def device_mesh(lexer: Lexer) -> Mesh:
    """Read `mesh['x'=2,'y'=4]`, its optional `, device_ids=(..)`, or `maximal_mesh[device_id=3]`, from the word on.

    May also read a comma after a mesh of axes. The caller checks the mesh with `Mesh.problem`.
    """
    is_maximal = lexer.value == "maximal_mesh"
    lexer.advance()
    if is_maximal:
        lexer.expect("[", "after maximal_mesh")
        if not at_attribute(lexer, "device_id"):
            raise lexer.error("expected device_id= attribute in maximal_mesh")
        lexer.advance()
        device = parse_integer(lexer)
        lexer.expect("]", "to end maximal_mesh")
        return Mesh((), maximal_device=device)
    axes = comma_list(lexer, "[", "]", lambda: _mesh_axis(lexer))
    if not lexer.take(",") or not at_attribute(lexer, "device_ids"):
        return Mesh(axes)
    lexer.advance()
    start = lexer.start
    lexer.expect("(", "for device_ids")
    if lexer.value == "[":
        order = iota(lexer)
        lexer.expect(")", "to end device_ids")
        return Mesh(axes, order)
    lexer.jump(start)
    return Mesh(axes, comma_list(lexer, "(", ")", lambda: parse_integer(lexer)))


def _mesh_axis(lexer: Lexer) -> tuple[str, int]:
    name = string_value(lexer)
    lexer.expect("=", "after the name of a mesh axis")
    return name, parse_integer(lexer)


def axis_ref(lexer: Lexer, mesh: Mesh) -> AxisRef:
    """Read `'x'`, `'x':(1)2`, or an axis by number, `'0'`."""
    start = lexer.start
    name = string_value(lexer)
    names = [axis for axis, _ in mesh.axes]
    if name in names:
        number = names.index(name)
    elif name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(names):
        number = int(name)
    else:
        raise lexer.error(f"axis '{name}' is not a valid axis name or index in mesh {mesh}", start)
    if not lexer.take(":"):
        return AxisRef(number)
    lexer.expect("(", "before the pre-size of a sub-axis")
    pre_size = parse_integer(lexer)
    lexer.expect(")", "after pre_size in sub axis")
    return AxisRef(number, pre_size, parse_integer(lexer))
