"""XLA's flags that act in passes over collectives."""

from __future__ import annotations

from hlo_run.errors import UsageError
from hlo_run.options.flag import FlagRecord, flag, flag_record

UNSPECIFIED_DOMAIN = "COLLECTIVE_COMMUNICATION_DOMAIN_UNSPECIFIED"
COMMUNICATION_DOMAINS = {
    "unspecified": UNSPECIFIED_DOMAIN,
    "scale_up_fabric": "COLLECTIVE_COMMUNICATION_DOMAIN_SCALE_UP_FABRIC",
}
"""XLA's names of the domains in which devices communicate, by the names in flags and attributes."""
PRIVATE_MEMORY = "COLLECTIVES_PRIVATE_MEMORY"
"""Devices exchange values by way of buffers of their own."""
_PIPELINING = "COLLECTIVE_PIPELINING_MODE_ON"
_DEFAULT_PIPELINING = "COLLECTIVE_PIPELINING_MODE_DEFAULT"
_PIPELINING_MODES = (_DEFAULT_PIPELINING, "COLLECTIVE_PIPELINING_MODE_OFF", _PIPELINING, "COLLECTIVE_PIPELINING_MODE_EXPLICIT")
_MODES = (PRIVATE_MEMORY, "COLLECTIVES_SYMMETRIC_MEMORY", "COLLECTIVES_PEER_MEMORY")
MOST_COMBINED_BYTES = 30 * 1024 * 1024 + 7
"""The default of the thresholds of combiners."""


@flag_record
class CollectiveFlags(FlagRecord):
    """The flags of DebugOptions that change passes over collectives. All have XLA's defaults."""

    xla_gpu_all_gather_combine_threshold_bytes: int = flag(
        MOST_COMBINED_BYTES,
        "gpu-all-gather-combiner: combine all-gathers with results of at most N bytes together (0: none).",
        "N",
    )
    xla_gpu_all_reduce_combine_threshold_bytes: int = flag(
        MOST_COMBINED_BYTES,
        "gpu-all-reduce-combiner: combine all-reduces with results of at most N bytes together (0: none).",
        "N",
    )
    xla_gpu_reduce_scatter_combine_threshold_bytes: int = flag(
        MOST_COMBINED_BYTES,
        "gpu-reduce-scatter-combiner: combine reduce-scatters with results of at most N bytes together (0: none).",
        "N",
    )
    xla_gpu_collective_permute_combine_threshold_bytes: int = flag(
        MOST_COMBINED_BYTES,
        "collective-permute-combiner: combine collective-permutes with results of at most N bytes together (0: none).",
        "N",
    )
    xla_gpu_collective_combine_threshold_count: int = flag(2048, "Combine at most N collectives into one.", "N")
    xla_gpu_threshold_for_windowed_einsum_mib: int = flag(
        100000,
        "spmd-partitioning: multiply in a loop over tiles that go round the devices where N MiB would be gathered or added up.",
        "N",
    )
    xla_gpu_operand_bytes_threshold_for_windowed_einsum: int = flag(
        -1, "spmd-partitioning: multiply in such a loop where both operands together have N bytes instead (-1: off).", "N"
    )
    xla_gpu_multi_streamed_windowed_einsum: bool = flag(
        True,
        "Unroll such loops, with a stream for each product, and run instructions that name a stream on it. false: in order.",
    )
    xla_enable_enzyme_comms_opt: bool = flag(
        False,
        "Send less between partitions: divide updates at constant places, recognize windows, merge and combine more permutes.",
    )
    xla_gpu_experimental_enable_alltoall_windowed_einsum: bool = flag(
        False, "windowed-einsum-handler: split products beside an all-to-all: parts are sent while others are multiplied."
    )
    xla_gpu_enable_all_gather_combine_by_dim: bool = flag(
        False, "gpu-all-gather-combiner: combine only all-gathers along one dimension."
    )
    xla_gpu_enable_reduce_scatter_combine_by_dim: bool = flag(
        False, "gpu-reduce-scatter-combiner: combine only reduce-scatters along one dimension."
    )
    xla_gpu_enable_reassociation_for_converted_ar: bool = flag(
        True, "all-reduce-reassociate: add converted values before they are reduced, in the wider type."
    )
    xla_gpu_unsupported_enable_all_reduce_decomposer: bool = flag(
        False, "all-reduce-decomposer: gather the values of small all-reduces, and reduce them on each device."
    )
    xla_gpu_all_reduce_blueconnect_num_devices_per_host: int = flag(
        0, "all-reduce-blueconnect: split all-reduces into one within hosts of N devices and one across them (0: do not).", "N"
    )
    xla_gpu_experimental_enable_collective_multi_streaming: bool = flag(
        False, "Name two streams for collectives, which start on them in turn. Devices are simulated, so nothing else changes."
    )
    xla_gpu_enable_while_loop_reduce_scatter_code_motion: bool = flag(
        False, "while-loop-all-reduce-code-motion: also do reduce-scatters that a loop adds up once, after the loop."
    )
    xla_gpu_enable_pipelined_all_reduce: bool = flag(
        False, "collective-pipeliner-forward: run all-reduces of a loop an iteration later."
    )
    xla_gpu_enable_pipelined_all_gather: bool = flag(
        False, "collective-pipeliner-backward: run all-gathers of a loop an iteration earlier."
    )
    xla_gpu_enable_pipelined_reduce_scatter: bool = flag(
        True, "collective-pipeliner-forward: run reduce-scatters of a loop an iteration later."
    )
    xla_gpu_pipeline_all_reduce: str = flag(
        _DEFAULT_PIPELINING,
        "The same as --xla_gpu_enable_pipelined_all_reduce: on; off, default and explicit leave it to that.",
        "MODE",
    )
    xla_gpu_pipeline_all_gather: str = flag(
        _DEFAULT_PIPELINING,
        "The same as --xla_gpu_enable_pipelined_all_gather: on; off, default and explicit leave it to that.",
        "MODE",
    )
    xla_gpu_pipeline_reduce_scatter: str = flag(
        _PIPELINING,
        "--xla_gpu_enable_pipelined_reduce_scatter acts if this is on, not if it is off, default or explicit.",
        "MODE",
    )
    xla_gpu_enable_pipelined_p2p: bool = flag(
        False,
        "Rows collective-permute-(cycle-)decomposer, latency-hiding-scheduler-preparation: messages, in order.",
    )
    xla_gpu_experimental_pipeline_parallelism_opt_level: str = flag(
        "PIPELINE_PARALLELISM_OPT_LEVEL_DISABLE",
        "collective-permute-decomposer: one permute of each loop becomes a message on a stream of its own.",
        choices=("PIPELINE_PARALLELISM_OPT_LEVEL_DISABLE", "PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE"),
    )
    xla_gpu_collective_permute_decomposer_threshold: int = flag(
        (1 << 63) - 1, "collective-permute-decomposer, collective-permute-cycle-decomposer: split values of N bytes or more.", "N"
    )
    xla_gpu_unsupported_enable_ragged_all_to_all_decomposer: bool = flag(
        False, "ragged-all-to-all-decomposer: exchange the pieces of a ragged-all-to-all in an all-to-all of whole arrays."
    )
    xla_gpu_unsupported_enable_ragged_all_to_all_multi_host_decomposer: bool = flag(
        True, "ragged-all-to-all-multi-host-decomposer: divide a ragged-all-to-all over two hosts."
    )
    xla_gpu_unsupported_override_fast_interconnect_slice_size: int = flag(
        0, "ragged-all-to-all-multi-host-decomposer: a host has N devices (0: the row does not run).", "N"
    )
    xla_gpu_experimental_collective_cse_distance_threshold: int = flag(
        0, "schedule-aware-collective-cse: share equal collectives whose users are at most N steps away (0: off).", "N"
    )
    xla_gpu_collective_permute_mode: str = flag(
        PRIVATE_MEMORY, "collective-backend-assigner: memory of collective-permutes: private, symmetric or peer.", "MODE"
    )
    xla_gpu_all_gather_mode: str = flag(
        PRIVATE_MEMORY, "collective-backend-assigner: memory of all-gathers: private, symmetric or peer.", "MODE"
    )
    xla_gpu_unsupported_use_all_reduce_one_shot_kernel: bool = flag(
        True, "collective-kernel-strategy-annotator: note the small all-reduces that a kernel of its own does."
    )
    xla_gpu_experimental_use_collective_kernels: str = flag(
        "COLLECTIVE_KERNEL_ALL_REDUCE",
        "collective-kernel-strategy-annotator, collective-fusion: collectives with kernels of their own, if small (+KIND, -KIND: "
        "changes to the default); all-reduces have one.",
        "KINDS",
    )

    xla_gpu_experimental_enable_heuristic_collective_combining: bool = flag(
        False,
        "collective-combiner-annotator: let combiners join collectives of several hosts that run beside nothing, by free memory.",
    )
    xla_gpu_enable_nccl_user_buffers: bool = flag(
        False, "Put what collectives read and write into a memory space of its own, S(7), and copy parameters and results."
    )
    xla_gpu_experimental_enable_nccl_symmetric_buffers: bool = flag(False, "The same as --xla_gpu_enable_nccl_user_buffers here.")

    xla_gpu_collective_domain_assignment: str = flag(
        "",
        "collective-domain-assigner: the domain in which the devices of collectives communicate, unspecified or scale_up_fabric.",
        "DOMAIN",
    )

    @property
    def has_collective_memory(self) -> bool:
        """True if every collective reads and writes a separate memory space."""
        return self.xla_gpu_enable_nccl_user_buffers or self.xla_gpu_experimental_enable_nccl_symmetric_buffers

    @property
    def collective_permute_mode(self) -> str:
        """XLA's name of the memory of collective-permutes. Raises UsageError for an unknown one."""
        return _mode("xla_gpu_collective_permute_mode", self.xla_gpu_collective_permute_mode, _MODES, "COLLECTIVES_{}_MEMORY")

    @property
    def communication_domain(self) -> str:
        """XLA's name of the domain in which devices communicate. Raises UsageError for an unknown one."""
        value = self.xla_gpu_collective_domain_assignment
        domain = COMMUNICATION_DOMAINS.get(value.lower()) if value else UNSPECIFIED_DOMAIN
        if domain is None:
            known = ", ".join(COMMUNICATION_DOMAINS)
            raise UsageError(f"--xla_gpu_collective_domain_assignment: unknown domain '{value}'", hint=f"choose from {known}")
        return domain

    @property
    def all_gather_mode(self) -> str:
        """XLA's name of the memory of all-gathers. Raises UsageError for an unknown one."""
        return _mode("xla_gpu_all_gather_mode", self.xla_gpu_all_gather_mode, _MODES, "COLLECTIVES_{}_MEMORY")

    @property
    def pipelines_all_reduce(self) -> bool:
        """True if a flag asks to pipeline all-reduces. Raises UsageError for an unknown mode."""
        return self._is_on("xla_gpu_pipeline_all_reduce") or self.xla_gpu_enable_pipelined_all_reduce

    @property
    def pipelines_all_gather(self) -> bool:
        """True if a flag asks to pipeline all-gathers. Raises UsageError for an unknown mode."""
        return self._is_on("xla_gpu_pipeline_all_gather") or self.xla_gpu_enable_pipelined_all_gather

    @property
    def pipelines_reduce_scatter(self) -> bool:
        """True if no flag forbids to pipeline reduce-scatters. Raises UsageError for an unknown mode."""
        return self._is_on("xla_gpu_pipeline_reduce_scatter") and self.xla_gpu_enable_pipelined_reduce_scatter

    def _is_on(self, flag_name: str) -> bool:
        mode = _mode(flag_name, str(getattr(self, flag_name)), _PIPELINING_MODES, "COLLECTIVE_PIPELINING_MODE_{}")
        return mode == _PIPELINING


def _mode(flag_name: str, value: str, modes: tuple[str, ...], form: str) -> str:
    named = value.upper()
    mode = named if named in modes else form.format(named)
    if mode not in modes:
        start, end = form.split("{}")
        short = ", ".join(mode.removeprefix(start).removesuffix(end).lower() for mode in modes)
        raise UsageError(f"--{flag_name}: unknown mode '{value}'", hint=f"choose from {short}")
    return mode
