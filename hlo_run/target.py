"""Describes a GPU to the heuristics and the PTX back end, from a preset or from an XLA `gpu_target_config`.

Presets have the values of XLA's `backends/gpu/target_config/specs`. A real GPU may report other clocks and memory sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import cast

from msgspec import Struct

from hlo_run.errors import UsageError

WARP_THREADS = 32
# From this major version on a GPU has instructions that later ones lack (`sm_90a`).
_FIRST_ACCELERATED_MAJOR = 9


class TargetSpec(Struct, frozen=True):
    """One GPU.

    `compute_capability` is (major, minor). `core_count` is the number of SMs, `threads_per_core_limit` the largest number of
    resident threads of an SM, `fpus_per_core` the number of f32 units of an SM. `memory_bandwidth` is in bytes per second.
    `shared_memory_per_block_optin_bytes` is the most that a block may ask for, `shared_memory_per_block_bytes` what every
    block may have. `block_dim_limit` is the largest grid in blocks, and `registers_per_core_limit` counts 32-bit registers.
    `toolkit_version` is the CUDA version (major, minor), which limits the available instructions. `active_links` is the number
    of NVLinks to other GPUs.
    """

    name: str
    description: str
    compute_capability: tuple[int, int]
    core_count: int
    threads_per_core_limit: int
    fpus_per_core: int
    clock_rate_ghz: float
    l2_cache_size_bytes: int
    memory_bandwidth: int
    device_memory_size_bytes: int
    shared_memory_per_block_optin_bytes: int
    shared_memory_per_core_bytes: int
    shared_memory_per_block_bytes: int = 49152
    threads_per_warp: int = WARP_THREADS
    threads_per_block_limit: int = 1024
    block_dim_limit: tuple[int, int, int] = (2147483647, 65535, 65535)
    registers_per_core_limit: int = 65536
    toolkit_version: tuple[int, int] = (12, 8)
    active_links: int = 0

    @property
    def sm(self) -> int:
        """The capability as one number: 90 for 9.0, 120 for 12.0."""
        major, minor = self.compute_capability
        return major * 10 + minor

    @property
    def sm_name(self) -> str:
        """The PTX target without `a` or `f`. PTX for it runs on every later GPU of the major version."""
        return f"sm_{self.sm}"

    @property
    def xla_name(self) -> str:
        """The target as XLA's dump names spell it: `sm_9.0a`, `sm_8.0`."""
        major, minor = self.compute_capability
        return f"sm_{major}.{minor}" + ("a" if major >= _FIRST_ACCELERATED_MAJOR else "")

    @property
    def max_resident_threads(self) -> int:
        """The number of threads that fill the GPU. Loop emitters unroll at this number of elements or more."""
        return self.core_count * self.threads_per_core_limit

    @property
    def is_blackwell(self) -> bool:
        """True for capability 10.x. XLA does not count 12.0."""
        return self.compute_capability[0] == 10


def _spec(
    name: str,
    description: str,
    capability: tuple[int, int],
    cores: tuple[int, int, int],
    clock: float,
    l2: int,
    bandwidth: int,
    memory: int,
    shared: tuple[int, int],
    links: int = 0,
) -> TargetSpec:
    sms, threads, fpus = cores
    limits = dict(zip(("shared_memory_per_block_optin_bytes", "shared_memory_per_core_bytes"), shared, strict=True))
    return TargetSpec(
        name, description, capability, sms, threads, fpus, clock, l2, bandwidth, memory, active_links=links, **limits
    )


PRESETS: dict[str, TargetSpec] = {
    spec.name: spec
    for spec in (
        _spec(
            "v100", "Tesla V100-SXM2-16GB", (7, 0), (80, 2048, 64), 1.53, 6291456, 898048000000, 16935682048, (98304, 98304), 6
        ),
        _spec(
            "a100_pcie_80",
            "NVIDIA A100 80GB PCIe",
            (8, 0),
            (108, 2048, 64),
            1.1105,
            41943040,
            2039000000000,
            79050250240,
            (166912, 167936),
        ),
        _spec(
            "a100_sxm_40",
            "NVIDIA A100-SXM4-40GB",
            (8, 0),
            (108, 2048, 64),
            1.41,
            41943040,
            1555200000000,
            42331013120,
            (166912, 167936),
        ),
        _spec(
            "a100_sxm_80",
            "NVIDIA A100-SXM4-80GB",
            (8, 0),
            (108, 2048, 64),
            1.41,
            41943040,
            2039040000000,
            85100068864,
            (166912, 167936),
        ),
        _spec(
            "h100_pcie",
            "NVIDIA H100 PCIe",
            (9, 0),
            (114, 2048, 128),
            1.755,
            52428800,
            2039040000000,
            84942979072,
            (232448, 233472),
        ),
        _spec(
            "h100_sxm",
            "NVIDIA H100 80GB HBM3",
            (9, 0),
            (132, 2048, 128),
            1.98,
            52428800,
            3352320000000,
            84942979072,
            (232448, 233472),
            18,
        ),
        _spec(
            "h200",
            "NVIDIA H200 141GB HBM3e",
            (9, 0),
            (132, 2048, 128),
            1.98,
            52428800,
            4800000000000,
            151397597184,
            (232448, 233472),
            18,
        ),
        _spec(
            "b200", "NVIDIA B200", (10, 0), (148, 2048, 128), 1.965, 132644864, 7672320000000, 191514411008, (232448, 233472), 18
        ),
        _spec(
            "rtx6000pro",
            "NVIDIA RTX PRO 6000 Blackwell",
            (12, 0),
            (188, 1536, 128),
            2.6,
            134217728,
            1792000000000,
            103079215104,
            (101376, 131072),
        ),
    )
}
ALIASES = {"a100": "a100_sxm_80", "h100": "h100_sxm"}
DEFAULT_TARGET = "h100"


def preset(name: str) -> TargetSpec:
    """Return the preset called `name` (XLA's spec names, or `a100`, `h100`); raises UsageError for an unknown name."""
    spec = PRESETS.get(ALIASES.get(name, name))
    if spec is None:
        known = ", ".join(sorted((*PRESETS, *ALIASES)))
        raise UsageError(f"unknown target '{name}'", hint=f"choose one of {known}, or set --xla_gpu_target_config_filename=FILE")
    return spec


# A name begins where no other does, and is not given back: else a long word takes the square of its length.
_FIELD = re.compile(r'(?<![a-z_0-9])([a-z_0-9]++)\s*:\s*("(?:[^"\\]|\\.)*"|[^\s{}]+)')
_REQUIRED_FIELDS = ("core_count", "threads_per_core_limit")


def from_text_proto(text: str, name: str) -> TargetSpec:
    """Read an XLA `gpu_target_config` text proto (`specs/*.txtpb`).

    A missing field gets the value of the default preset, but a GPU without `active_links` has no NVLinks. The SM count, the
    threads per SM and the compute capability must be present. `name` is the file's name. Raises UsageError for a missing or
    malformed field.
    """
    clean = re.sub(r"#[^\n]*", "", text)
    fields = {key: value.strip('"') for key, value in _FIELD.findall(clean)}
    capability = re.search(r"cuda_compute_capability\s*:?\s*\{([^}]*)\}", clean)
    missing = [key for key in _REQUIRED_FIELDS if key not in fields]
    if missing or not capability:
        lacking = ", ".join(missing + ([] if capability else ["cuda_compute_capability"]))
        raise UsageError(f"'{name}' is not a gpu_target_config: it lacks {lacking}")
    version = dict(_FIELD.findall(capability.group(1)))
    base = preset(DEFAULT_TARGET)
    try:
        return TargetSpec(
            name=name,
            description=fields.get("device_description_str", name),
            compute_capability=(int(version.get("major", "0")), int(version.get("minor", "0"))),
            core_count=int(fields["core_count"]),
            threads_per_core_limit=int(fields["threads_per_core_limit"]),
            fpus_per_core=int(fields.get("fpus_per_core", base.fpus_per_core)),
            clock_rate_ghz=float(fields.get("clock_rate_ghz", base.clock_rate_ghz)),
            l2_cache_size_bytes=int(fields.get("l2_cache_size", base.l2_cache_size_bytes)),
            memory_bandwidth=int(fields.get("memory_bandwidth", base.memory_bandwidth)),
            device_memory_size_bytes=int(fields.get("device_memory_size", base.device_memory_size_bytes)),
            shared_memory_per_block_optin_bytes=int(
                fields.get("shared_memory_per_block_optin", base.shared_memory_per_block_optin_bytes)
            ),
            shared_memory_per_core_bytes=int(fields.get("shared_memory_per_core", base.shared_memory_per_core_bytes)),
            shared_memory_per_block_bytes=int(fields.get("shared_memory_per_block", base.shared_memory_per_block_bytes)),
            toolkit_version=_version(fields.get("compile_time_toolkit_version", "")) or base.toolkit_version,
            active_links=int(fields.get("active_links", 0)),
        )
    except ValueError as error:
        raise UsageError(f"'{name}' is not a gpu_target_config: {error}") from error


def to_text_proto(spec: TargetSpec) -> str:
    """Return the XLA `gpu_target_config` of a GPU as a text proto, which `from_text_proto` can read."""
    major, minor = spec.compute_capability
    version = "{}.{}.0".format(*spec.toolkit_version)
    capability: dict[str, object] = {"major": major, "minor": minor} if minor else {"major": major}
    if major >= _FIRST_ACCELERATED_MAJOR:
        capability["feature_extension"] = "ACCELERATED_FEATURES"
    device: dict[str, object] = {
        "threads_per_block_limit": spec.threads_per_block_limit,
        "threads_per_warp": spec.threads_per_warp,
        "shared_memory_per_block": spec.shared_memory_per_block_bytes,
        "shared_memory_per_core": spec.shared_memory_per_core_bytes,
        "threads_per_core_limit": spec.threads_per_core_limit,
        "core_count": spec.core_count,
        "fpus_per_core": spec.fpus_per_core,
        **{f"block_dim_limit_{axis}": limit for axis, limit in zip("xyz", spec.block_dim_limit, strict=True)},
        "memory_bandwidth": spec.memory_bandwidth,
        "l2_cache_size": spec.l2_cache_size_bytes,
        "clock_rate_ghz": spec.clock_rate_ghz,
        "device_memory_size": spec.device_memory_size_bytes,
        "shared_memory_per_block_optin": spec.shared_memory_per_block_optin_bytes,
        "cuda_compute_capability": capability,
        "registers_per_core_limit": spec.registers_per_core_limit,
        "registers_per_block_limit": spec.registers_per_core_limit,
        **{f"{name}_version": f'"{version}"' for name in ("driver", "runtime", "compile_time_toolkit")},
        "dnn_version": '"9.10.0"',
        **({"device_interconnect_info": {"active_links": spec.active_links}} if spec.active_links else {}),
        "device_vendor": '"NVIDIA Corporation"',
        "platform_version": f'"Compute Capability {spec.xla_name.removeprefix("sm_")}"',
        "name": f'"{spec.description}"',
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "device_address_bits": 64,
    }
    toolkit = dict(zip(("major", "minor"), spec.toolkit_version, strict=True))
    target: dict[str, object] = {
        "gpu_device_info": device,
        "platform_name": '"CUDA"',
        "device_description_str": f'"{spec.description}"',
        "runtime_version": toolkit,
    }
    return "".join(f"{line}\n" for line in _message_lines(target, ""))


def _message_lines(message: Mapping[str, object], pad: str) -> Iterator[str]:
    """Yield the lines of a text proto."""
    for name, value in message.items():
        if isinstance(value, dict):
            yield f"{pad}{name} {{"
            yield from _message_lines(cast("Mapping[str, object]", value), pad + "  ")
            yield f"{pad}}}"
        else:
            yield f"{pad}{name}: {value}"


def _version(text: str) -> tuple[int, int] | None:
    """Read `12.8.0`; None for an unset version (`0.0.0` or empty)."""
    parts = text.split(".")
    if len(parts) < 2 or not parts[0].isdigit() or not parts[1].isdigit() or int(parts[0]) == 0:
        return None
    return int(parts[0]), int(parts[1])
