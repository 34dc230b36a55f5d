"""The names of the stages of a compilation, for --help and the completion of shells. Both must not load the compiler."""

from __future__ import annotations

STAGE_TEXTS = {
    "hlo-input": "the module as read",
    "after_spmd_partitioner": "the module of one partition",
    "hlo": "the optimised and scheduled module",
    "fusion-analysis": "emitter, launch and tiles of each fusion",
    "buffer-assignment": "allocations and the values in them",
    "buffer-assignment-values": "the values with their positions and uses",
    "live-range": "from when to when each value lives",
    "memory-usage-report": "the memory at its peak",
    "thunks": "what the device executes, in order",
    "thunks-after-passes": "the same with command buffers",
    "thunk-metadata": "the thunks with their HLO instructions",
    "emit-kernels": "kernel IR (xla_gpu) as emitted",
    "llvm-before-optimizations": "LLVM IR of the kernels",
    "llvm": "the same after LLVM's passes",
    "ptx": "PTX of the kernels",
    "gpu-dialect": "launches and kernels in one file of IR",
}
"""What each stage shows, by name. `--golden_stages` has more; any row of the pass tables is a stage too."""

OPT_STAGE_TEXTS = {
    **{name: text for name, text in STAGE_TEXTS.items() if name != "hlo-input"},
    "hlo-backend": "hlo, also if the module was scheduled before",
    "html": "a page that draws the optimised module",
    "llvm-after-optimizations": "XLA's name of llvm",
}
"""The stages of `hlo-opt --platform=gpu`."""
