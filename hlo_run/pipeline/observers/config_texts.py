"""Texts about a compilation that XLA dumps as protos: its flags (`debug_options`) and its configuration (`config.pbtxt`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.options import Options
from hlo_run.options.debug_options import DebugOption, debug_options, differing
from hlo_run.sharding.analysis.shardy_attributes import has_shardy_attributes
from hlo_run.sharding.analysis.whole import is_for_partitioner

_INDENT = "  "
_FILTER_FIELDS = ("collective", "max_size_bytes", "op_type")
_OLD_FLAG, _KERNELS = "xla_gpu_unsupported_use_all_reduce_one_shot_kernel", "xla_gpu_experimental_use_collective_kernels"
_NUMBERS = ("bool", "int32", "int64", "float")


def given_flags(options: Options) -> dict[str, str]:
    """Return the values of the flags that are in XLA's DebugOptions and that the options set, by name."""
    own = {
        field.name: _text(getattr(options, field.name))
        for field in fields(Options)
        if getattr(options, field.name) != field.default and field.name in debug_options()
    }
    if options.is_spmd_partitioned_module:
        own["xla_disable_all_hlo_passes"] = "true"
    if own.pop(_OLD_FLAG, ""):
        # A former name for one element of the list: XLA keeps the list alone.
        kinds = own.get(_KERNELS, debug_options()[_KERNELS].default).split(",")
        own[_KERNELS] = ",".join(kind for kind in kinds if kind != "COLLECTIVE_KERNEL_ALL_REDUCE")
    return own | dict(options.other_xla_flags)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def debug_options_text(given: Mapping[str, str]) -> str:
    """Return the text of `*.debug_options`: a line per value of each flag that differs from XLA's default."""
    return "".join(f"{line}\n" for option, value in differing(given) for line in _lines(option, value, ordered=True))


def config_text(module: HloModule, given: Mapping[str, str]) -> str:
    """Return the text of `*.config.pbtxt`, a HloModuleConfigProto."""
    shapes = [parameter.shape for parameter in module.entry.parameters]
    lines = ["entry_computation_layout {"]
    for shape in shapes:
        lines += [f"{_INDENT}parameters {{", *_shape_lines(shape, 2), f"{_INDENT}}}"]
    lines += [f"{_INDENT}result {{", *_shape_lines(module.entry.root.shape, 2), f"{_INDENT}}}"]
    lines += [f'{_INDENT}parameter_names: "{parameter.name}"' for parameter in module.entry.parameters]
    lines.append("}")
    replicas, partitions = module.replica_count, module.num_partitions
    lines += [f"replica_count: {replicas}", f"num_partitions: {partitions}"]
    lines += ["use_spmd_partitioning: true"] if is_for_partitioner(module) else []
    lines += ["intra_op_parallelism_threads: -1", "debug_options {"]
    lines += [f"{_INDENT}{line}" for line in _debug_option_lines(given)]
    lines += ["}", *_device_lines(replicas, partitions), *_ABOUT_SHARDINGS]
    lines += ["use_shardy_partitioner: true"] if has_shardy_attributes(module) else []
    lines += ["sharding_config {", "}", "schedule_config {", "}", f"partition_size: {replicas * partitions}"]
    return "\n".join(lines) + "\n"


_ABOUT_SHARDINGS = (
    "allow_spmd_sharding_propagation_to_output: false",
    "allow_spmd_sharding_propagation_to_parameters: false",
)


def _device_lines(replicas: int, partitions: int) -> Iterator[str]:
    """Yield which device runs which replica of which partition, if there are several devices."""
    if replicas * partitions == 1:
        return
    yield from ("static_device_assignment {", f"{_INDENT}replica_count: {replicas}", f"{_INDENT}computation_count: {partitions}")
    for partition in range(partitions):
        yield f"{_INDENT}computation_devices {{"
        yield from (f"{2 * _INDENT}replica_device_ids: {replica * partitions + partition}" for replica in range(replicas))
        yield f"{_INDENT}}}"
    yield "}"


def _debug_option_lines(given: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of all set fields in the order of their numbers, as protobuf's text format prints them."""
    changed = {option.name: value for option, value in differing(given)}
    for option in sorted(debug_options().values(), key=lambda option: option.number):
        if option.number and (option.presence == "printed" or option.name in changed or _is_nonzero(option)):
            yield from _lines(option, changed.get(option.name, option.default))


def _is_nonzero(option: DebugOption) -> bool:
    """True if a field without presence differs from the zero of its type, or a list has elements."""
    if option.is_list:
        return bool(option.default)
    return option.presence == "implicit" and option.default not in ("", "0", "false", *option.choices[:1])


def _lines(option: DebugOption, value: str, ordered: bool = False) -> Iterator[str]:
    """Yield the lines of a field; with `ordered` the elements of a list are sorted, and messages begin with a colon."""
    values = [part for part in value.split(",") if part] if option.is_list else [value]
    for part in sorted(values) if ordered else values:
        if option.type == "map":
            key, _, text = part.partition("=")
            yield from (f"{option.name}{':' * ordered} {{", f'{_INDENT}key: "{key}"', f'{_INDENT}value: "{text}"', "}")
        elif option.has_filters:
            fields_set = zip(_FILTER_FIELDS, part.split(":"), strict=False)
            shown = (f"{_INDENT}{name}: {text}" for name, text in fields_set if text not in ("0", option.choices[0]))
            yield from (f"{option.name}{':' * ordered} {{", *shown, "}")
        elif option.choices or option.type in _NUMBERS:
            yield f"{option.name}: {part}"
        else:
            escaped = part.replace("\\", "\\\\").replace('"', '\\"')
            yield f'{option.name}: "{escaped}"'


def _shape_lines(shape: Shape, depth: int) -> list[str]:
    """Return the fields of a ShapeProto."""
    pad = _INDENT * depth
    lines = [f"{pad}element_type: {shape.element_type.upper()}"]
    if shape.is_tuple:
        for part in shape.tuple_shapes:
            lines += [f"{pad}tuple_shapes {{", *_shape_lines(part, depth + 1), f"{pad}}}"]
        return lines
    lines += [f"{pad}dimensions: {size}" for size in shape.dims]
    if shape.is_array:
        lines.append(f"{pad}layout {{")
        lines += [f"{pad}{_INDENT}minor_to_major: {dimension}" for dimension in shape.minor_to_major]
        bits = shape.layout.element_size_bits if shape.layout is not None else 0
        lines += [f"{pad}{_INDENT}element_size_in_bits: {bits}"] * bool(bits)
        lines += [f"{pad}{_INDENT}tail_padding_alignment_in_elements: 1", f"{pad}}}"]
        dynamic = shape.dynamic_dims or (False,) * len(shape.dims)
        lines += [f"{pad}is_dynamic_dimension: {str(is_dynamic).lower()}" for is_dynamic in dynamic]
    return lines
