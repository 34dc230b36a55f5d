"""Makes, reads and edits xDSL operations faster: replaces methods of xDSL's classes that every kernel pass uses.

xDSL checks and converts at every step what our passes have right: it builds an operation by lists per kind of argument, reads a
named operand by two views and a match statement, asks abstract base classes for `isinstance`, walks nested generators, and
verifies again what it has verified. The functions here do the same with the same results and errors: what they do not know,
they leave to xDSL's own method. They differ in one point: `operation.operands` is the tuple of now, where xDSL has a view that
changes with the operation.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct
from xdsl.ir import Attribute, Block, Data, Operation, OpResult, ParametrizedAttribute, SSAValue, SSAValues, Use, core
from xdsl.irdl import AnyAttr, AnyOf, BaseAttr, IRDLOperation, OpDef, ParamAttrDef, TypeVarConstraint
from xdsl.irdl.operations import (
    AttrSizedOperandSegments,
    AttrSizedSegments,
    BaseAccessor,
    BaseAttrAccessor,
    BeforeVariadicSingleAccessor,
    OptionalDef,
    VariadicDef,
    VarIRConstruct,
)
from xdsl.traits import OpTrait

_NOTHING: Mapping[str, Any] = {}
_class_of: Callable[[Any], Any] = type
_unknown_location: Callable[[], Any] = getattr(core, "_unknown_loc")  # noqa: B009 - private in xDSL


class _Plain(ABCMeta):
    """The class of xDSL's classes: `isinstance` looks at base classes only, since no class has registered others."""

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


def _make_plain(kind: Any) -> None:
    if type(kind) is ABCMeta:
        kind.__class__ = _Plain
    for derived in type.__subclasses__(kind):
        _make_plain(derived)


# Operands.


def _set_operand(self: Any, index: int, value: Any) -> None:
    """Let an operation use another value: `operation.operands[index] = value`."""
    operation = self.operation
    values = list(operation._operands)
    use = operation._operand_uses[index]
    values[index].remove_use(use)
    value.add_use(use)
    values[index] = value
    made: Any = SSAValues(values)
    made.operation = operation
    operation._operands = made


def _operands(self: Any) -> Any:
    return self._operands


def _set_operands(self: Any, new: Any) -> None:
    for operand, use in zip(self._operands, self._operand_uses, strict=False):  # an erased operation has no uses
        operand.remove_use(use)
    _use_operands(self, new)


def _use_operands(self: Any, new: Any) -> None:
    """Let an operation that uses no values use `new`."""
    values: Any = SSAValues(new)
    values.operation = self
    self._operands = values
    if values:
        uses: list[Use] = []
        for index, operand in enumerate(values):
            first = operand.first_use
            use: Any = Use(self, index, None, first)
            if first is not None:
                first._prev_use = use
            operand.first_use = use
            uses.append(use)
        self._operand_uses = tuple(uses)
    else:
        self._operand_uses = ()


def _replace_all_uses(self: Any, value: Any) -> None:
    if value is self:
        return
    use = self.first_use
    self.first_use = None
    while use is not None:
        following = use._next_use
        operation = use._operation
        values = list(operation._operands)
        values[use._index] = value
        made: Any = SSAValues(values)
        made.operation = operation
        operation._operands = made
        first = value.first_use
        use._prev_use, use._next_use = None, first
        if first is not None:
            first._prev_use = use
        value.first_use = use
        use = following
    if value._name is None:
        value.name_hint = self._name


_NAMES: dict[str | None, str | None] = {None: None}
"""The valid names that `name_hint` was set to, and what xDSL takes of them."""


def _set_name(self: Any, name: str | None) -> None:
    found = _NAMES.get(name, name)
    if found is name and name not in _NAMES:
        found = _NAMES[name] = self.extract_valid_name(name)
    self._name = found


# Operations.


def _init_operation(
    self: Any,
    *,
    operands: Sequence[Any] = (),
    result_types: Sequence[Any] = (),
    properties: Mapping[str, Any] = _NOTHING,
    attributes: Mapping[str, Any] = _NOTHING,
    location: Any = None,
    successors: Sequence[Any] = (),
    regions: Sequence[Any] = (),
) -> None:
    _use_operands(self, operands)
    self.results = SSAValues([OpResult(type_, self, index) for index, type_ in enumerate(result_types)])
    self.properties = dict(properties)
    self.attributes = dict(attributes)
    self.location = _unknown_location() if location is None else location
    if successors:
        self.successors = successors
    for region in regions:
        self.add_region(region)
    self.__post_init__()


_DEFAULTS: dict[type, tuple[tuple[tuple[str, Any], ...], ...]] = {}
"""By class of operations, the defaults of properties and of attributes."""


def _post_init(self: Any) -> None:
    """Add the defaults of properties and attributes that an operation lacks."""
    kind = _class_of(self)
    defaults = _DEFAULTS.get(kind)
    if defaults is None:
        definition = self.get_irdl_definition()
        defaults = _DEFAULTS[kind] = _defaults(definition.properties), _defaults(definition.attributes)
    properties, attributes = defaults
    for name, value in properties:
        if name not in self.properties:
            self.properties[name] = value
    for name, value in attributes:
        if name not in self.attributes:
            self.attributes[name] = value
    after: Callable[[Any], None] = Operation.__post_init__
    if after is not _post_init_by_xdsl:  # inside xDSL's `ImplicitBuilder`, which inserts what is made
        after(self)


_post_init_by_xdsl: Callable[[Any], None] = Operation.__post_init__


def _defaults(definitions: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, definition.default_value)
        for name, definition in definitions.items()
        if not isinstance(definition, OptionalDef) and definition.default_value is not None
    )


class _Plan(Struct, frozen=True):
    """The plan of a constructor: per operand and result, whether it may be missing, and whether it may be several."""

    operands: tuple[tuple[bool, bool], ...]
    results: tuple[tuple[bool, bool], ...]
    segments: AttrSizedSegments | None
    is_known: bool
    """False if the operation has regions, successors or options, which xDSL's own constructor handles."""


_PLANS: dict[type, _Plan] = {}
_SEVERAL = (list, tuple, SSAValues)
_SEGMENTS: dict[tuple[int, ...], Any] = {}


def _plan(definition: OpDef) -> _Plan:
    segments = [option for option in definition.options if type(option) is AttrSizedOperandSegments]
    return _Plan(
        _kinds(definition.operands),
        _kinds(definition.results),
        segments[0] if segments else None,
        not definition.regions and not definition.successors and len(segments) == len(definition.options) <= 1,
    )


def _kinds(definitions: Iterable[tuple[str, Any]]) -> tuple[tuple[bool, bool], ...]:
    return tuple((isinstance(each, OptionalDef), isinstance(each, VariadicDef)) for _, each in definitions)


def _flat(given: Sequence[Any], kinds: tuple[tuple[bool, bool], ...], single: Any, sizes: list[int]) -> list[Any] | None:
    """Return the arguments as one list, and append how many each has to `sizes`. None for what only xDSL understands."""
    if len(given) != len(kinds):
        return None
    flat: list[Any] = []
    for argument, (optional, variadic) in zip(given, kinds, strict=True):
        if isinstance(argument, single):
            flat.append(argument)
            sizes.append(1)
        elif argument is None:
            if not optional:
                return None
            sizes.append(0)
        elif variadic and type(argument) in _SEVERAL and (len(argument) < 2 or not optional):
            for each in argument:
                if not isinstance(each, single):
                    return None
                flat.append(each)
            sizes.append(len(argument))
        elif isinstance(argument, Operation) and single is SSAValue and len(argument.results) == 1:
            flat.append(argument.results[0])
            sizes.append(1)
        else:
            return None
    return flat


def _segment_sizes(sizes: tuple[int, ...]) -> Any:
    found = _SEGMENTS.get(sizes)
    if found is None:
        from xdsl.dialects.builtin import DenseArrayBase, i32  # defined by means of operations

        found = _SEGMENTS[sizes] = DenseArrayBase.from_list(i32, sizes)
    return found


def _without_missing(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None} if attributes else {}


def _init_defined(
    self: Any,
    *,
    operands: Any = None,
    result_types: Any = None,
    properties: Any = None,
    attributes: Any = None,
    successors: Any = None,
    regions: Any = None,
) -> None:
    """Build an operation from arguments in the form of its definition."""
    kind = _class_of(self)
    plan = _PLANS.get(kind)
    if plan is None:
        plan = _PLANS[kind] = _plan(kind.get_irdl_definition())
    if plan.is_known and not successors and not regions:
        sizes: list[int] = []
        flat = _flat(operands or (), plan.operands, SSAValue, sizes)
        types = None if flat is None else _flat(result_types or (), plan.results, Attribute, [])
        if flat is not None and types is not None:
            _use_operands(self, flat)
            self.results = SSAValues([OpResult(type_, self, index) for index, type_ in enumerate(types)])
            self.properties = _without_missing(properties)
            self.attributes = _without_missing(attributes)
            if plan.segments is not None:
                plan.segments.container(self)[plan.segments.attribute_name] = _segment_sizes(tuple(sizes))
            self.location = _unknown_location()
            self.__post_init__()
            return
    _init_by_xdsl(
        self,
        operands=operands,
        result_types=result_types,
        properties=properties,
        attributes=attributes,
        successors=successors,
        regions=regions,
    )


_init_by_xdsl: Callable[..., None] = IRDLOperation.__init__


# Named operands, results, regions and successors.


def _constructs(operation: Any, construct: VarIRConstruct) -> Any:
    if construct is VarIRConstruct.OPERAND:
        return operation._operands
    if construct is VarIRConstruct.RESULT:
        return operation.results
    if construct is VarIRConstruct.REGION:
        return operation.regions
    return operation._successors


def _get_single(self: Any, operation: Any, kind: object = None) -> Any:
    return _constructs(operation, self.construct)[self.idx]


def _get_by_index(self: Any, operation: Any, kind: object = None) -> Any:
    return _sliced(self, self.index(_constructs(operation, self.construct)))


def _get_by_segments(self: Any, operation: Any, kind: object = None) -> Any:
    sizes = self.option.container(operation)[self.option.attribute_name].get_values()
    return _sliced(self, self.index(sizes, _constructs(operation, self.construct)))


def _sliced(accessor: Any, found: Any) -> Any:
    """Return what an accessor found. A slice of values is `SSAValues` again."""
    is_slice_of_values = _class_of(found) is tuple and accessor.construct in (VarIRConstruct.OPERAND, VarIRConstruct.RESULT)
    return _values(found) if is_slice_of_values else found


_values: Callable[[Any], Any] = SSAValues


# Walks.


def _iterate_ops(first: Any) -> Iterator[Any]:
    """Yield an operation and those behind it. The next one is read before an operation is yielded, which may thus be erased."""
    while first is not None:
        following = first._next_op
        yield first
        first = following


def _iterate_blocks(first: Any) -> Iterator[Any]:
    while first is not None:
        following = first._next_block
        yield first
        first = following


def _iterate_block_ops(self: Any) -> Iterator[Any]:
    return _iterate_ops(self.block._first_op)


def _iterate_region_blocks(self: Any) -> Iterator[Any]:
    return _iterate_blocks(self._region._first_block)


def _walk_block(self: Any, *, reverse: bool = False, region_first: bool = False) -> Iterator[Any]:
    if reverse or region_first:
        return _walk_block_by_xdsl(self, reverse=reverse, region_first=region_first)
    return _walk_ops(self._first_op)


_walk_block_by_xdsl: Callable[..., Any] = Block.walk


def _walk_ops(op: Any) -> Iterator[Any]:
    while op is not None:
        following = op._next_op
        yield op
        for region in op.regions:
            block = region._first_block
            while block is not None:
                after = block._next_block
                yield from _walk_ops(block._first_op)
                block = after
        op = following


def _attach(self: Any, operation: Any) -> None:
    """Make an operation part of a block."""
    if operation.parent or operation.regions:
        _attach_by_xdsl(self, operation)  # checks that the operation is nowhere else, and does not contain the block
    else:
        operation.parent = self


_attach_by_xdsl: Callable[..., None] = Block._attach_op  # pyright: ignore[reportPrivateUsage]


def _drop_references(self: Any) -> None:
    """Let an operation use nothing, before it is erased."""
    self.parent = None
    for operand, use in zip(self._operands, self._operand_uses, strict=False):
        operand.remove_use(use)
    self._operand_uses = ()
    if self._successors:
        for successor, use in zip(self._successors, self._successor_uses, strict=False):
            successor.remove_use(use)
        self._successor_uses = ()
        self._successors = ()
    for region in self.regions:
        region.drop_all_references()


# Attributes.


def _init_parameters(self: Any, *parameters: Any) -> None:
    """Set the parameters of an attribute, converted, and verify it."""
    values = self.__dict__
    kind = _class_of(self)
    fields = _FIELDS.get(kind)
    if fields is None:
        parts = self.get_irdl_definition().parameters
        fields = _FIELDS[kind] = tuple((name, definition.converter) for name, definition in parts)
    for (name, converter), parameter in zip(fields, parameters, strict=True):
        values[name] = parameter if converter is None else converter(parameter)
    key: tuple[Any, ...] = (kind, *map(type, values.values()))
    if key not in _VALID_AS_DEFINED:
        self.__post_init__()
        if key in _VALID and (kind.__post_init__, kind._verify, kind.verify) == _VERIFIED_AS_DEFINED:
            _VALID_AS_DEFINED.add(key)


_FIELDS: dict[type, tuple[tuple[str, Callable[[Any], Any] | None], ...]] = {}
"""By class of attributes, the names of the parameters with their converters."""
_VALID_AS_DEFINED: set[tuple[type, ...]] = set()
"""The part of `_VALID` whose attributes have no other rules than those of their definition."""
_VALID: set[tuple[type, ...]] = set()
"""Classes of attributes with classes of their parameters that fit, where classes alone decide."""
_BY_CLASS: dict[type, bool] = {}


def _verify_parameters(self: Any, attribute: Any) -> None:
    """Verify the parameters of an attribute by its definition, which is `self`."""
    kind = _class_of(attribute)
    key: tuple[Any, ...] = (kind, *map(type, attribute.__dict__.values()))
    if key in _VALID:
        return
    _verify_parameters_by_xdsl(self, attribute)
    by_class = _BY_CLASS.get(kind)
    if by_class is None:
        by_class = _BY_CLASS[kind] = all(_is_by_class(definition.constr) for _, definition in self.parameters)
    if by_class and len(key) == len(self.parameters) + 1:
        _VALID.add(key)


_verify_parameters_by_xdsl: Callable[..., None] = ParamAttrDef.verify


def _is_by_class(constraint: Any) -> bool:
    """Tell whether the class of an attribute decides about a constraint."""
    if type(constraint) is AnyOf:
        parts: tuple[Any, ...] = constraint.attr_constrs
        return all(map(_is_by_class, parts))
    if isinstance(constraint, TypeVarConstraint):
        return _is_by_class(constraint.base_constraint)
    return type(constraint) in (AnyAttr, BaseAttr)


def _verify_attribute(self: Any) -> None:
    self._verify()
    if not isinstance(self, _ATTRIBUTES):
        raise TypeError("Attributes should only be Data or ParametrizedAttribute")


_ATTRIBUTES = (ParametrizedAttribute, Data)


def _verify_parametrized(self: Any) -> None:
    self.get_irdl_definition().verify(self)
    self.verify()


# Verification.

_MOST_NUMBERS = 20_000
_number_by_value: dict[Any, int] = {}
_number_by_id: dict[int, tuple[int, Any]] = {}
"""Equal attributes have one number. With the attribute, so that no other object gets its id."""
_verified: set[tuple[Any, ...]] = set()
"""What `_signature` returned for operations that their definition accepts."""
_checking_traits: dict[type, tuple[Any, ...]] = {}


def _number(attribute: Any) -> int:
    known = _number_by_id.get(id(attribute))
    if known is None:
        number = _number_by_value.setdefault(attribute, len(_number_by_value))
        known = _number_by_id[id(attribute)] = number, attribute
    return known[0]


def _signature(definition: Any, operation: Any) -> tuple[Any, ...]:
    """Return all that the definition of an operation without regions looks at, except what its traits do."""
    signature: list[Any] = [type(operation)]
    signature += [_number(operand._type) for operand in operation._operands]
    signature.append(None)
    signature += [_number(result._type) for result in operation.results]
    for name, value in operation.properties.items():
        known = definition.properties.get(name)
        signature += (name, type(value) if known is not None and _is_by_class(known.constr) else _number(value))
    signature.append(None)
    for name in definition.attributes:
        if name in operation.attributes:
            signature += (name, _number(operation.attributes[name]))
    return tuple(signature)


def _verify_definition(self: Any, operation: Any) -> None:
    """Verify an operation by its definition, which is `self`. Most operations of a kernel are like one that was verified."""
    if operation.regions or operation._successors:
        _verify_definition_by_xdsl(self, operation)
        return
    signature = _signature(self, operation)
    if signature not in _verified:
        _verify_definition_by_xdsl(self, operation)
        if len(_number_by_id) > _MOST_NUMBERS:
            for each in (_number_by_value, _number_by_id, _verified):
                each.clear()
        else:
            _verified.add(signature)
        return
    kind = signature[0]
    traits = _checking_traits.get(kind)
    if traits is None:
        own: list[Any] = [trait for trait in self.traits if not _checks_nothing(trait)]
        traits = _checking_traits[kind] = tuple(own)
    for trait in traits:
        trait.verify(operation)


def _checks_nothing(trait: Any) -> bool:
    return _class_of(trait).verify is OpTrait.verify


_verify_definition_by_xdsl: Callable[..., None] = OpDef.verify


_VERIFIED_AS_DEFINED = (_verify_attribute, _verify_parametrized, Attribute.verify)
"""What a class of attributes inherits that has no rules of its own."""


def make_xdsl_lean() -> None:
    """Replace the methods. Classes of operations that exist already are treated too."""
    if Operation.__init__ is _init_operation:
        return
    for kind in (core.IRWithUses, core.IRWithName, core._IRNode, Attribute):  # pyright: ignore[reportPrivateUsage]
        _make_plain(kind)
    delattr(SSAValues, "__getitem__")
    replaced: tuple[tuple[Any, str, object], ...] = (
        (Operation, "__init__", _init_operation),
        (Operation, "operands", property(_operands, _set_operands)),
        (Operation, "drop_all_references", _drop_references),
        (SSAValues, "__setitem__", _set_operand),
        (SSAValue, "replace_all_uses_with", _replace_all_uses),
        (core.IRWithName, "name_hint", property(attrgetter("_name"), _set_name)),
        (IRDLOperation, "__init__", _init_defined),
        (IRDLOperation, "__post_init__", _post_init),
        (BeforeVariadicSingleAccessor, "__get__", _get_single),
        (BaseAccessor, "__get__", _get_by_index),
        (BaseAttrAccessor, "__get__", _get_by_segments),
        (core.BlockOps, "__iter__", _iterate_block_ops),
        (core.RegionBlocks, "__iter__", _iterate_region_blocks),
        (Block, "walk", _walk_block),
        (Block, "_attach_op", _attach),
        (ParametrizedAttribute, "__init__", _init_parameters),
        (ParametrizedAttribute, "_verify", _verify_parametrized),
        (ParamAttrDef, "verify", _verify_parameters),
        (Attribute, "__post_init__", _verify_attribute),
        (OpDef, "verify", _verify_definition),
    )
    for owner, name, function in replaced:
        setattr(owner, name, function)
