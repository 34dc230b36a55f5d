"""Ask real XLA's verifier about HLO text: XLA:GPU's compiler without a GPU, in a separate process, because XLA may abort.

    python scripts/xla_verifier.py FILE...      print XLA's verdict on each file

The Python that runs this file needs jaxlib and the plugin `jax-cuda13-pjrt` (or `jax-cuda12-pjrt`), but neither a GPU nor the
CUDA libraries. `XlaVerifier` offers the same to other scripts. One pass runs: XLA verifies (layouts do not count, mixed
precision is refused), and soon fails to emit code, which says nothing about the module.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from json_child import JsonChild

# Without any pass, XLA does not verify.
_FLAGS = "--xla_gpu_autotune_level=0 --xla_enable_hlo_passes_only=dce"

# Failed checks in these files of XLA are verdicts on the module. Other files run after the verifier.
_JUDGES = re.compile(
    r"(hlo_verifier|shape_inference|hlo_instructions?|hlo_computation|hlo_module\w*|shape_util|shape|layout\w*|hlo_schedule"
    r"|collective\w*|replica_group\w*|literal\w*|hlo_input_output\w*|hlo_casting\w*|permutation_util|window_util|hlo_sharding"
    r"|hlo_parser|array|tile_assignment|utils|comparison_util|tuple_points_to_analysis)\.(cc|h):"
)
# Other messages with the same meaning: XLA could not even build the module.
_NOT_MADE = ("[hlo verifier", "layout minor_to_major", "hlo_instruction.cc", "hlo_module.cc", "hlo_computation.cc")

_DEVICE = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 } runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100"
"""


class XlaVerifier(JsonChild):
    """A process that verifies with real XLA."""

    def __init__(self, python: str = sys.executable) -> None:
        environment = {"XLA_FLAGS": _FLAGS, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": ""}
        super().__init__([python, __file__, "--serve"], environment)

    def verify(self, text: str) -> tuple[bool, str]:
        """Return whether XLA accepts the module, and its message."""
        answer, fatal = self.ask(text)
        if answer is None:
            # XLA has died: in a check, or (without a message) while reading the module's text.
            return bool(fatal) and not _JUDGES.search(fatal.partition("Check failed")[0]), fatal or "died"
        return answer[0], answer[1]


# Positions of functions in PJRT_Api, counted from the first pointer after the version. The API only grows at its end.
_PLACES = {"Error_Destroy": 0, "Error_Message": 1, "Plugin_Initialize": 3, "TopologyDescription_Create": 82, "Compile": 89}
_FIRST = 40


class _Plugin:
    """The part of the PJRT C API that compiles. Every argument struct is an array of 8-byte words."""

    def __init__(self) -> None:
        library = ctypes.CDLL(_plugin_path())
        library.GetPjrtApi.restype = ctypes.c_void_p
        self._api: int = library.GetPjrtApi()
        self._keep: list[object] = []
        self._call("Plugin_Initialize", ())
        values = [self._named("target_config", _DEVICE), self._named("topology", "1x1x1")]
        words = (ctypes.c_uint64 * 14)(*values[0], *values[1])
        self._keep.append(words)
        self._topology = self._call("TopologyDescription_Create", (*self._bytes(b"1x1x1"), ctypes.addressof(words), 2, 0))[6]

    def compile(self, module: bytes, options: bytes) -> None:
        """Compile; raises ValueError with XLA's message."""
        program = self._words((*self._bytes(module), *self._bytes(b"hlo")))
        self._call("Compile", (self._topology, ctypes.addressof(program), *self._bytes(options), 0, 0))

    def _named(self, name: str, value: str) -> Sequence[int]:
        return (56, 0, *self._bytes(name.encode()), 0, *self._bytes(value.encode()))

    def _words(self, words: Sequence[int]) -> Any:
        struct = (ctypes.c_uint64 * (len(words) + 2))(8 * (len(words) + 2), 0, *words)
        self._keep.append(struct)
        return struct

    def _bytes(self, data: bytes) -> tuple[int, int]:
        buffer = ctypes.create_string_buffer(data, len(data))
        self._keep.append(buffer)
        return ctypes.addressof(buffer), len(data)

    def _raw(self, name: str, struct: Any) -> int:
        pointer = ctypes.c_uint64.from_address(self._api + _FIRST + 8 * _PLACES[name]).value
        return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(pointer)(ctypes.addressof(struct)) or 0

    def _call(self, name: str, words: Sequence[int]) -> Any:
        struct = self._words(words)
        if error := self._raw(name, struct):
            message = self._words((error, 0, 0))
            self._raw("Error_Message", message)
            text = ctypes.string_at(message[3], message[4]).decode(errors="replace")
            self._raw("Error_Destroy", self._words((error,)))
            raise ValueError(text)
        return struct


def _plugin_path() -> str:
    for name in ("xla_cuda13", "xla_cuda12"):
        found = importlib.util.find_spec("jax_plugins")
        for root in (found.submodule_search_locations or []) if found else []:
            path = Path(root) / name / "xla_cuda_plugin.so"
            if path.exists():
                return str(path)
    raise SystemExit("the plugin is missing: pip install --no-deps jax-cuda13-pjrt")


def _options(text: str) -> bytes:
    """Return compile options with the numbers of devices in the module's header."""
    client: Any = importlib.import_module("jaxlib.xla_client")
    options = client.CompileOptions()
    build = options.executable_build_options
    header = next((line for line in text.splitlines() if line.startswith("HloModule")), "")
    for name, attribute in (("replica_count", "num_replicas"), ("num_partitions", "num_partitions")):
        if found := re.search(rf"\b{name}=(\d+)", header):
            setattr(build, attribute, int(found[1]))
            build.use_spmd_partitioning = build.use_spmd_partitioning or name == "num_partitions"
    return options.SerializeAsString()


def _answer(plugin: _Plugin, text: str) -> tuple[bool, str]:
    hlo: Any = importlib.import_module("jaxlib._hlo")
    try:
        module = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    except Exception as error:
        return False, str(error)
    try:
        plugin.compile(module, _options(text))
    except ValueError as error:
        said = str(error)
        return not any(words in said for words in _NOT_MADE), said
    return True, ""


def _serve() -> None:
    plugin = _Plugin()
    # XLA writes to stdout and stderr, so answers go to a copy of stdout.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(_answer(plugin, json.loads(line))) + "\n")
        out.flush()


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        _serve()
        return
    with XlaVerifier() as xla:
        for file in sys.argv[1:]:
            accepted, said = xla.verify(Path(file).read_text(encoding="utf-8"))
            print(f"{file}: {'accepted' if accepted else 'refused'}{said and ': '}{said.strip()}")


if __name__ == "__main__":
    main()
