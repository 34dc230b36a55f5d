"""Chooses the GPU to compile for, from the flags."""

from __future__ import annotations

from hlo_run import target as targets
from hlo_run.options import CompileOptions
from hlo_run.options.text_files import read_text


def choose_target(options: CompileOptions) -> targets.TargetSpec:
    """Return the GPU of the spec file, else the preset of `--target`, else the default; raises UsageError."""
    path = options.xla_gpu_target_config_filename
    if path:
        return targets.from_text_proto(read_text(path, "--xla_gpu_target_config_filename"), path)
    return targets.preset(options.target or targets.DEFAULT_TARGET)


def target_config(options: CompileOptions) -> str:
    """Return the GPU to compile for as the text proto of an XLA `gpu_target_config`."""
    path = options.xla_gpu_target_config_filename
    return read_text(path, "--xla_gpu_target_config_filename") if path else targets.to_text_proto(choose_target(options))
