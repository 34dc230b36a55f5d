"""Record which values XLA's command line takes for its flags, and what it makes of them, for the test of our reader.

    python3 scripts/venv.py python scripts/record_flag_values.py > tests/data/xla_flag_values.tsv

A line `flag<TAB>value<TAB>result` per value. The result is the value as `hlo_run/options/debug_options.tsv` writes it, or
`refused`. XLA reads XLA_FLAGS once per process, so each value has a child process. Needs `hlo-run[xla]`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import struct
from collections.abc import Iterator

from hlo_run.options.debug_options import DebugOption, debug_options

REFUSED = "refused"
_INTEGERS = (
    "5|-3|+5|0x10|0X1f|010|1e3|1.0|1.5|5.|5x|true|0b1|٣|--3|-0|1_000| 5|5 ||2147483647|2147483648|-2147483648|-2147483649|"
    "9223372036854775807|9223372036854775808|-9223372036854775809|99999999999999999999"
).split("|")
_FLOATS = (
    "5|.5|5.|+.5|-1|+1|1e3|1E-3|1e|1e+|inf|-inf|INF|infinity|INFINITY|nan|NaN|-nan|nan(1)|0x10|0x1p3|0x.8p1|0x1P-2|0x|1_0|1f|"
    "1e400|1e-60|1,5|| 1|1 |00001|0.123456789"
).split("|")
_BOOLS = "true|false|True|FALSE|tRuE|1|0|t|f|yes|no|on|off|y|n|2|-1|01|| true".split("|")
_VALUES = {
    "xla_gpu_memory_limit_slop_factor": _INTEGERS,
    "xla_gpu_all_gather_combine_threshold_bytes": _INTEGERS,
    "xla_gpu_autotune_gemm_rtol": _FLOATS,
    "xla_gpu_ftz": _BOOLS,
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS|FUSION, CUBLAS| FUSION|FUSION,|FUSION,,CUBLAS||,|FUSION,FUSION|+WHILE|-FUSION|+WHILE,-FUSION|+while|"
        "+ WHILE|+WHILE,FUSION|+WHILE,|-WHILE|+FUSION|NOSUCH|+NOSUCH|1"
    ).split("|"),
    "xla_gpu_disable_async_collectives": (
        "ALLREDUCE,ALLGATHER|allreduce|NOOP|+ALLREDUCE|-ALLREDUCE|ALLREDUCE, ALLGATHER|ALLREDUCE,ALLREDUCE|ALLREDUCE,|1"
    ).split("|"),
    "xla_gpu_experimental_autotune_backends": (
        "TRITON|triton|CUBLAS|TRITON, CUDNN|+TRITON,+CUDNN|+TRITON,CUDNN|triton,|llvm_kernel_emitter|hipblaslt_fission|,|"
    ).split("|"),
    "xla_gpu_execution_terminate_timeout": (
        "10s|10|1h|inf|-1s|x||1.5m|0|+1s|1h30m|1 s|-inf|1e3s|10S|1s |1d|1.s|.5s|infs|+inf|1m-1s|00"
    ).split("|"),
    "xla_gpu_experimental_thunk_buffer_debug_filter_by_thunk_id_ranges": (
        "1|1:3|1:|:3|:|1-3|-1|3:1|1:3:5| 1|1,2|1, 2|1,|x:1|1:x|99999999999999999999|+1"
    ).split("|"),
    "xla_backend_extra_options": "a=1|a=1,b=2|a=b=c|a=1,a=2".split("|"),
    "xla_gpu_analytical_latency_estimator_options": "nic_speed_gbps=10|rtt_us=5,nic_speed_gbps=10|x=1".split("|"),
}
_BUILD_OPTIONS = 3  # a field of CompileOptionsProto
_FIXED64 = 1  # a kind of field, as are those of 4 bytes


def values() -> Iterator[tuple[DebugOption, str]]:
    """Yield flags with the values to try."""
    options = debug_options()
    for name, tried in _VALUES.items():
        yield from ((options[name], value) for value in tried)
    for option in options.values():
        # Filters are messages; `tests/options` has their spellings.
        if option.choices and option.number and option.name not in _VALUES and not option.has_filters:
            last = option.choices[-1]
            parts = ["_".join(last.split("_")[start:]) for start in range(last.count("_") + 1)]
            middle = last.removeprefix("COLLECTIVES_").removesuffix("_MEMORY")
            forms = [*parts, middle, option.choices[0], option.choices[1], str(len(option.choices) - 1), ""]
            yield from ((option, word) for form in forms for word in dict.fromkeys((form, form.lower(), form.title())))


def result_of_xla(option: DebugOption, value: str) -> str:
    """Return what XLA makes of a value in a child process, as the table writes it."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ["XLA_FLAGS"] = f"--{option.name}='{value}'"
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        compile_options = importlib.import_module("jaxlib.xla_client").CompileOptions()
        assert compile_options.executable_build_options.debug_options is not None  # reads XLA_FLAGS
        os.write(writable, compile_options.SerializeAsString())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        data = pipe.read()
    if os.waitpid(child, 0)[1]:
        return REFUSED
    message = dict(_fields(dict(_fields(data))[_BUILD_OPTIONS]))
    longest = max((part for part in message.values() if isinstance(part, bytes)), key=len)
    return ",".join(_texts(option, [found for number, found in _fields(longest) if number == option.number]))


def _texts(option: DebugOption, found: list[int | bytes]) -> Iterator[str]:
    """Yield the values of a field."""
    for part in found:
        if option.type == "map" and isinstance(part, bytes):
            pair = dict(_fields(part))
            yield f"{_text(pair[1])}={_text(pair[2])}"
        elif option.is_list and isinstance(part, bytes):
            yield from (option.from_proto(str(number)) for number in part)
        elif isinstance(part, bytes):
            yield f"{struct.unpack('<f', part)[0]:.9g}" if option.type == "float" else _text(part)
        elif option.type == "bool":
            yield "true" if part else "false"
        else:
            yield option.from_proto(str(part - (1 << 64) if part >= 1 << 63 else part))


def _text(data: int | bytes) -> str:
    assert isinstance(data, bytes)
    return data.decode()


def _fields(data: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of the fields of a serialized message."""
    assert isinstance(data, bytes)
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        match key & 7:
            case 0:
                value, place = _varint(data, place)
                yield key >> 3, value
            case 1 | 5 as kind:
                size = 8 if kind == _FIXED64 else 4
                yield key >> 3, data[place : place + size]
                place += size
            case _:
                size, place = _varint(data, place)
                yield key >> 3, data[place : place + size]
                place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def main() -> None:
    importlib.import_module("jaxlib.xla_client")  # before the children, which then share it
    release = importlib.metadata.version("jaxlib")
    print(f"# What released XLA (jaxlib {release}) makes of values of its flags. scripts/record_flag_values.py writes this file.")
    for option, value in dict.fromkeys(values()):
        print(option.name, value, result_of_xla(option, value), sep="\t", flush=True)


if __name__ == "__main__":
    main()
