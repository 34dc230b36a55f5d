"""Chooses the GPU to compile for, from the flags and from what lies beside a dumped file."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from hlo_run import target as targets
from hlo_run.hlo.text.dumped_release import dump_beside
from hlo_run.options import CompileOptions
from hlo_run.options.text_files import read_text

OptionsT = TypeVar("OptionsT", bound=CompileOptions)
_CONFIG = ".gpu_target_config.pbtxt"


def with_dumped_target(options: OptionsT, file: str) -> OptionsT:
    """Return the options with the GPU for which XLA compiled a dumped file, unless flags choose one.

    XLA writes the GPU of `module_0001.NAME.*` into `module_0001.NAME.gpu_target_config.pbtxt`.
    """
    if options.target or options.xla_gpu_target_config_filename:
        return options
    config = dump_beside(file, _CONFIG)
    return options if config is None else dataclasses.replace(options, dumped_target=str(config))


def choose_target(options: CompileOptions) -> targets.TargetSpec:
    """Return the GPU of the spec file, else the preset of `--target`, else a dump's GPU, else the default; raises UsageError."""
    path = _config_file(options)
    if path:
        target = targets.from_text_proto(read_text(path, "--xla_gpu_target_config_filename"), path)
        from hlo_run.codegen.llvm.nvptx import isa_of  # few command lines need it

        isa_of(target)  # refuses a GPU for which no kernel can be compiled
        return target
    return targets.preset(options.target or targets.DEFAULT_TARGET)


def target_config(options: CompileOptions) -> str:
    """Return the GPU to compile for as the text proto of an XLA `gpu_target_config`."""
    path = _config_file(options)
    return read_text(path, "--xla_gpu_target_config_filename") if path else targets.to_text_proto(choose_target(options))


def _config_file(options: CompileOptions) -> str:
    return options.xla_gpu_target_config_filename or ("" if options.target else options.dumped_target)
