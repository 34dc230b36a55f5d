"""Parse shardings, and domains, which have two of them."""

from __future__ import annotations

from hlo_run.hlo.attributes.devices import axis_ref, device_mesh, dims, iota
from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.records import metadata_or_list
from hlo_run.hlo.attributes.text import (
    at_brace,
    attribute_name,
    comma_list,
    open_brace,
    parse_integer,
    parse_string,
    sub_attributes,
)
from hlo_run.hlo.values.attribute_values import Domain
from hlo_run.hlo.values.mesh import AxisRef, Mesh
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.sharding import DimSharding, NamedSharding, Sharding, SingleSharding, TupleSharding, tiled
from hlo_run.hlo.values.tile_assignment import Iota, TileAssignment

# In order of precedence, if the text has several.
_PLAIN_KINDS = ("replicated", "maximal", "manual", "unknown", "unreduced")
_SUBGROUPS = ("maximal", "replicated", "manual", "unreduced")


def parse_sharding(lexer: Lexer) -> Sharding:
    """Read a sharding such as `{replicated}`, `{devices=[2]<=[2]}`, `{mesh['x'=2], [{'x'}]}`, `{{replicated}, {manual}}`."""
    lexer.advance()
    open_brace(lexer, "to start sharding attribute")
    if not at_brace(lexer) and lexer.value != "}":
        return _single(lexer)
    elements: list[SingleSharding | NamedSharding] = []
    while lexer.value != "}":
        open_brace(lexer, "to start sharding attribute")
        elements.append(_single(lexer))
        if not lexer.take(","):
            break
        if lexer.value == "}":
            raise lexer.error("expects a sharding, but sees '}'")
    lexer.expect("}", "to end sharding attribute")
    return TupleSharding(tuple(elements))


def parse_domain(lexer: Lexer) -> Domain:
    """Read `{kind="sharding", entry={..}, exit={..}}`."""
    lexer.advance()
    start = lexer.start
    readers = {"kind": parse_string, "entry": parse_sharding, "exit": parse_sharding}
    found = sub_attributes(lexer, readers, required=("kind", "entry", "exit"))
    if found["kind"] != "sharding":
        raise lexer.error(f"unsupported domain kind: {found['kind']}", start)
    return Domain(found["entry"], found["exit"])


# The type of the metadata that say how the parts of an unreduced array are joined: SUM, MAX or MIN.
_REDUCTION = "sdy::reduction_op"


def _says_reduction(metadata: OpMetadata) -> bool:
    return metadata.op_type == _REDUCTION


class _Written:
    """The fields of a sharding that is not over a mesh, which the text may have in any order."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.devices: tuple[int, ...] = ()
        self.dims: tuple[int, ...] = ()
        self.order: Iota | None = None
        self.subgroups: tuple[str, ...] = ()
        self.metadata: list[OpMetadata] = []
        self.group_words: set[str] = set()
        self.group = 0


def _single(lexer: Lexer) -> SingleSharding | NamedSharding:
    """Read the sharding of one array; the current token follows its brace."""
    if lexer.kind == "ident" and lexer.value in ("mesh", "maximal_mesh"):
        return _named(lexer)
    start = lexer.start
    written = _Written()
    while lexer.value != "}":
        _piece(lexer, written)
    lexer.advance()
    problem = _problem(written)
    if problem:
        raise lexer.error(problem, start)
    sharding = _from_written(written)
    if not written.group_words:
        return sharding
    group = "as" if "shard_as" in written.group_words else "like", written.group
    return SingleSharding(
        sharding.kind, sharding.device, sharding.tiles, sharding.subgroups, sharding.metadata, shard_group=group
    )


def _piece(lexer: Lexer, written: _Written) -> None:
    word = lexer.value
    if lexer.kind == "attr":
        _field(lexer, written)
    elif lexer.kind == "ident" and (word in _PLAIN_KINDS or word == "last_tile_dim_replicate"):
        written.words.add(word)
        lexer.advance()
    elif lexer.kind == "ident" and word in ("shard_as", "shard_like"):
        written.group_words.add(word)
        lexer.advance()
        written.group = parse_integer(lexer)
    else:
        raise lexer.error(f"unexpected token in a sharding: {lexer.seen()}")


def _field(lexer: Lexer, written: _Written) -> None:
    name, start = lexer.value, lexer.start
    lexer.advance()
    if name == "device":
        written.devices = (parse_integer(lexer),)
    elif name == "devices":
        if written.dims:
            raise lexer.error("attribute devices already exists", start)
        written.dims = dims(lexer)
        if lexer.take("<="):
            written.order = iota(lexer)
        else:
            written.devices += _device_list(lexer)
    elif name == "metadata":
        written.metadata += metadata_or_list(lexer)
    elif name == "last_tile_dims":
        written.subgroups += comma_list(lexer, "{", "}", lambda: _subgroup(lexer))
    else:
        message = "unknown attribute in sharding: expected device=, devices= metadata= or last_tile_dims="
        raise lexer.error(message, start)


def _device_list(lexer: Lexer) -> tuple[int, ...]:
    devices = [parse_integer(lexer)]
    while lexer.take(","):
        devices.append(parse_integer(lexer))
    return tuple(devices)


def _subgroup(lexer: Lexer) -> str:
    word = lexer.value
    if lexer.kind != "ident" or word not in _SUBGROUPS:
        raise lexer.error(f"expects one of {', '.join(_SUBGROUPS)}, but sees {lexer.seen()}")
    lexer.advance()
    return word


def _problem(written: _Written) -> str:
    kind = next((kind for kind in _PLAIN_KINDS if kind in written.words), "")
    if kind == "maximal":
        return "" if len(written.devices) == 1 else "maximal shardings should have exactly one device assigned"
    if kind:
        return f"{kind} shardings should not have any devices assigned" if written.devices else ""
    if not written.dims:
        return "non-maximal shardings must have a tile assignment list including dimensions"
    if "last_tile_dim_replicate" in written.words and written.subgroups:
        return "last_tile_dim_replicate and last_tile_dims exclude each other"
    if len(written.subgroups) + ("last_tile_dim_replicate" in written.words) > len(written.dims):
        return "more last_tile_dims than dimensions of the tile assignment"
    count = TileAssignment(written.dims, ()).count
    if written.order is not None:
        return "" if written.order.count == count and not written.devices else f"{count} tiles cannot take these devices"
    if len(written.devices) < 2:
        return "non-maximal shardings must have more than one device assigned"
    return f"{count} tiles need as many devices, not {len(written.devices)}" if len(written.devices) < count else ""


def _from_written(written: _Written) -> SingleSharding:
    if ("unreduced" in written.words or "unreduced" in written.subgroups) and not any(map(_says_reduction, written.metadata)):
        # XLA says of each unreduced sharding how its parts are joined.
        written.metadata.append(OpMetadata(op_type=_REDUCTION, op_name="SUM"))
    metadata = tuple(written.metadata)
    kind = next((kind for kind in _PLAIN_KINDS if kind in written.words), "")
    if kind:
        return SingleSharding(kind, written.devices[0] if kind == "maximal" else 0, metadata=metadata)
    subgroups = ("replicated",) if "last_tile_dim_replicate" in written.words else written.subgroups
    tiles = TileAssignment(written.dims, written.order or ())
    if written.order is None:
        # XLA ignores devices after the last tile.
        tiles = TileAssignment(written.dims, written.devices[: tiles.count])
    return tiled(tiles, subgroups, metadata)


def _named(lexer: Lexer) -> NamedSharding:
    """Read `mesh['x'=2], [{'x'}, {?}], replicated={..}}` up to its closing brace."""
    start = lexer.start
    mesh = device_mesh(lexer)
    if mesh.order is not None:
        lexer.take(",")
    sharding = _over_mesh(lexer, mesh)
    problem = mesh.problem() or sharding.problem()
    if problem:
        raise lexer.error(problem, start)
    lexer.expect("}", "to end sharding attribute")
    return sharding


def _over_mesh(lexer: Lexer, mesh: Mesh) -> NamedSharding:
    if mesh.maximal_device is not None or (lexer.kind == "ident" and lexer.value in ("replicated", "unreduced", "manual")):
        kind = "replicated" if mesh.maximal_device is not None else lexer.value
        has_comma = mesh.maximal_device is not None and lexer.value != "}"
        if mesh.maximal_device is None:
            lexer.advance()
            has_comma = lexer.take(",")
        if not has_comma:
            return NamedSharding.whole(mesh, kind, ())
        if attribute_name(lexer) != "metadata":
            raise lexer.error(f"expects metadata, but sees {lexer.seen()}")
        lexer.advance()
        return NamedSharding.whole(mesh, kind, metadata_or_list(lexer))
    dim_shardings = comma_list(lexer, "[", "]", lambda: _dim_sharding(lexer, mesh))
    axes: dict[str, tuple[AxisRef, ...]] = {"replicated": (), "unreduced": (), "manual": ()}
    metadata: tuple[OpMetadata, ...] = ()
    while lexer.take(","):
        name = attribute_name(lexer)
        lexer.advance()
        if name in axes:
            axes[name] += comma_list(lexer, "{", "}", lambda: axis_ref(lexer, mesh))
        elif name == "metadata":
            metadata += metadata_or_list(lexer)
        else:
            raise lexer.error("unknown attribute in named sharding: expected replicated, unreduced, manual or metadata")
    return NamedSharding(mesh, dim_shardings, metadata=metadata, **axes)


def _dim_sharding(lexer: Lexer, mesh: Mesh) -> DimSharding:
    """Read `{'x', 'y':(1)2, ?}`."""
    items = comma_list(lexer, "{", "}", lambda: None if lexer.take("?") else axis_ref(lexer, mesh))
    if None in items[:-1]:
        raise lexer.error("Saw axis ref after '?'")
    return DimSharding(tuple(item for item in items if item is not None), is_closed=None not in items)
