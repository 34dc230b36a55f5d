"""Converts `hlo.op` of the LLVM dialect to `!dbg` in LLVM IR, which becomes `.file` and `.loc` in PTX.

A `.file` is named after an HLO instruction and its op in the LLVM dialect (`add.3 llvm.fadd`). The line of a `.loc` is the
number of the op in the kernel's LLVM dialect, from 1. The debug information has only these directives, so it does not change
the code.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from hlo_run.codegen.llvm.print_ops import ModuleText

_NO_NAMES = "!{}"


class ModuleLocations:
    """The debug metadata that all functions of a module share: a file and a compile unit, named after the kernel."""

    def __init__(self, state: ModuleText, kernel: str) -> None:
        self.state = state
        self.file = state.node(f'!DIFile(filename: "{kernel}", directory: "")')
        self.unit = state.node(
            f'distinct !DICompileUnit(language: DW_LANG_C, file: {self.file}, producer: "hlo-run", isOptimized: true, '
            "runtimeVersion: 0, emissionKind: DebugDirectivesOnly)"
        )

    def named_metadata(self) -> str:
        """Return the module's named metadata: the compile unit and the version of the debug information."""
        version = self.state.node('!{i32 2, !"Debug Info Version", i32 3}')
        return f"!llvm.dbg.cu = !{{{self.unit}}}\n!llvm.module.flags = !{{{version}}}\n"


class Locations:
    """The debug metadata of one function."""

    def __init__(self, module: ModuleLocations, function: str) -> None:
        self._state = module.state
        self._function = function
        self._ops = 0
        node = self._state.node
        returns_nothing = node(f"!DISubroutineType(types: {node('!{null}')})")
        self.subprogram = node(
            f'distinct !DISubprogram(name: "{function}", scope: {module.file}, file: {module.file}, line: 1, '
            f"type: {returns_nothing}, scopeLine: 1, spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {module.unit}, "
            f"retainedNodes: {node(_NO_NAMES)})"
        )

    def reference(self, op: Operation) -> str:
        """Return the `!dbg` reference to append to the text of `op`. Call it for every op of the function, in order."""
        self._ops += 1
        origin = op.attributes.get("hlo.op")
        name = origin.data if isinstance(origin, StringAttr) else self._function
        file = self._state.node(f'!DIFile(filename: "{name} {op.name}", directory: "")')
        scope = self._state.node(f"!DILexicalBlockFile(scope: {self.subprogram}, file: {file}, discriminator: 0)")
        return f", !dbg {self._state.node(f'!DILocation(line: {self._ops}, column: 0, scope: {scope})')}"
