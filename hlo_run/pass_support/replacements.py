"""Edited texts that replace kernels: a dump of kernel IR (compiled from its row on), LLVM IR, or PTX.

    // row: cse-2; kernel: wrapped_add; launch: grid 1x1x1 block 120x1x1; unroll: 4; target: h100_sxm; module: module_0000.small

is the first line of a dump of kernel IR. Dumps and logs of XLA's kernel passes are read too. LLVM IR and PTX replace the kernel
that they define.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from msgspec import Struct, field

from hlo_run.analysis.tiling.launch_dimensions import LaunchDimensions
from hlo_run.errors import ParseError, UsageError, Where
from hlo_run.options import CompileOptions
from hlo_run.options.text_files import read_text
from hlo_run.pass_support.xla_kernel_dumps import is_xla_dump, read_xla_dump

_HEADER = re.compile(
    r"// row: (?P<row>[\w-]+); kernel: (?P<kernel>\w+); launch: grid (?P<grid>\d+x\d+x\d+) block (?P<block>\d+x\d+x\d+); "
    r"unroll: (?P<unroll>\d+); target: (?P<target>\S+); module: (?P<module>.+)"
)
_MODULE_PREFIX = re.compile(r"module_\d+\.")
_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_LLVM_KERNEL = re.compile(r"^define\s[^@\n]*ptx_kernel[^@\n]*@([\w$]+)\(", re.MULTILINE)


class KernelText(Struct, frozen=True):
    """A text and the kernel that it replaces."""

    kernel: str
    text: str
    file: str


class KernelIr(Struct, frozen=True):
    """A dump of kernel IR: the text after `row`, and the facts that the following rows and the launch need.

    `target` is the name of the GPU, or "" if the dump does not have it; `module` the common prefix of the dump names of its
    module, or "" if the dump fits every module.
    """

    kernel: str
    text: str
    file: str
    row: str
    launch: LaunchDimensions
    unroll_factor: int
    target: str
    module: str


class Replacements(Struct, frozen=True):
    """The replacement texts by kernel. A later stage has priority: PTX over LLVM IR over kernel IR."""

    ir: dict[str, KernelIr] = field(default_factory=dict[str, KernelIr])
    llvm: dict[str, KernelText] = field(default_factory=dict[str, KernelText])
    ptx: dict[str, KernelText] = field(default_factory=dict[str, KernelText])

    def check(self, kernels: Sequence[str]) -> None:
        """Raise UsageError for a text of a kernel that the module does not have."""
        for texts in (self.ir, self.llvm, self.ptx):
            for kernel, text in texts.items():
                if kernel not in kernels:
                    hint = f"the module has {', '.join(kernels)}" if kernels else "the module has no kernels"
                    raise UsageError(f"'{text.file}' is kernel '{kernel}', which the module does not have", hint=hint)


def file_name(name: str) -> str:
    """Return the name of a module as it appears in the names of dump files."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)


def header(row: str, kernel: str, launch: str, unroll_factor: int, target: str, module: str) -> str:
    """Return the first line of a dump of kernel IR."""
    return f"// row: {row}; kernel: {kernel}; launch: {launch}; unroll: {unroll_factor}; target: {target}; module: {module}"


def is_kernel_dump(path: str) -> bool:
    """Return True if a file begins as a dump of kernel IR does, False if not or if it cannot be read.

    False for a pipe too, whose beginning could not be read again.
    """
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            beginning = file.read(64)
        return beginning.startswith(b"// row: ") or is_xla_dump(beginning.decode(errors="replace"))
    except OSError:
        return False


def read_kernel_dump(path: str, before: str = "", launch: str = "") -> KernelIr:
    """Return the dump in a file; raises UsageError if it cannot be read, ParseError if its first line is not a valid header.

    `before` and `launch` are for dumps of XLA: the pass before which a log continues, and the launch dimensions.
    """
    return parse_kernel_dump(read_text(path, "kernel IR"), path, before, launch)


def parse_kernel_dump(text: str, path: str, before: str = "", launch: str = "") -> KernelIr:
    """Return the dump in a text, which is from the file `path`; raises ParseError if its first line is not a valid header."""
    if is_xla_dump(text[:64]):
        dump = read_xla_dump(text, path, before, launch)
        _check_launch(dump.launch, Where(path, 1, 1))
        return KernelIr(dump.kernel, dump.text, path, dump.row, dump.launch, dump.unroll_factor, "", dump.module)
    first = text.partition("\n")[0]
    found = _HEADER.fullmatch(first.strip())
    if found is None:
        hint = "a dump begins with its row, kernel, launch, unroll factor, target and module"
        raise ParseError("the file is not a dump of kernel IR", Where(path, 1, 1, first), hint)
    dimensions = LaunchDimensions(_sizes(found["grid"]), _sizes(found["block"]))
    _check_launch(dimensions, Where(path, 1, 1, first))
    return KernelIr(
        found["kernel"], text, path, found["row"], dimensions, int(found["unroll"]), found["target"], found["module"].strip()
    )


def _check_launch(launch: LaunchDimensions, where: Where) -> None:
    from hlo_run.artifact.structure import launch_problem  # imports the thunks, and few runs read a dump

    if problem := launch_problem(launch.grid, launch.block):
        raise ParseError(f"the kernel has {problem}", where)


def _sizes(text: str) -> tuple[int, int, int]:
    x, y, z = map(int, text.split("x"))
    return x, y, z


def read_replacements(options: CompileOptions, module: str) -> Replacements:
    """Return the texts that the flags give for the module with this name.

    A file called `module_NNNN.NAME.*` is for the module NAME, as in XLA; other names are for every module. Raises UsageError
    for files that cannot be read or define no kernel, ParseError for an invalid dump of kernel IR.
    """
    module = file_name(module)
    dumps = [read_kernel_dump(path, options.kernel_ir_before, options.kernel_launch) for path in _paths(options.kernel_ir_file)]
    return Replacements(
        {dump.kernel: dump for dump in dumps if _MODULE_PREFIX.sub("", dump.module) in ("", module)},
        _texts(options.xla_gpu_llvm_ir_file, module, _LLVM_KERNEL),
        _texts(options.xla_gpu_ptx_file, module, _PTX_ENTRY),
    )


def _texts(files: str, module: str, entry: re.Pattern[str]) -> dict[str, KernelText]:
    texts: dict[str, KernelText] = {}
    for path in _paths(files):
        name = os.path.basename(path)
        prefix = _MODULE_PREFIX.match(name)
        if prefix and not name[prefix.end() :].startswith(f"{module}."):
            continue
        text = read_text(path, "the kernel's text")
        found = entry.search(text)
        if found is None:
            raise UsageError(f"'{path}' defines no kernel")
        texts[found[1]] = KernelText(found[1], text, path)
    return texts


def _paths(files: str) -> list[str]:
    return [path.strip() for path in files.split(",") if path.strip()]
