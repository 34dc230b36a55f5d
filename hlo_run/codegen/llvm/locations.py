"""Where instructions come from: `hlo.op` of the LLVM dialect → `!dbg` in LLVM IR, which becomes `.file` and `.loc` in PTX.

A `.file` is called after an HLO instruction and the op that was made of it (`add.3 llvm.fadd`); the line of a `.loc` counts the
ops of the kernel's LLVM dialect from 1. LLVM is asked for nothing but these directives, so the code stays as it is without them.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from hlo_run.codegen.llvm.print_ops import ModuleText

_NO_NAMES = "!{}"


class ModuleLocations:
    """What the debug metadata of all functions of a module share: a file and a unit that are called after the kernel."""

    def __init__(self, state: ModuleText, kernel: str) -> None:
        self.state = state
        self.file = state.node(f'!DIFile(filename: "{kernel}", directory: "")')
        self.unit = state.node(
            f'distinct !DICompileUnit(language: DW_LANG_C, file: {self.file}, producer: "hlo-run", isOptimized: true, '
            "runtimeVersion: 0, emissionKind: DebugDirectivesOnly)"
        )

    def named_metadata(self) -> str:
        """Return the module's named metadata, which says that there is debug information and of which version."""
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
        """Return what to append to the text of the function's next instruction; to be asked for every op in order."""
        self._ops += 1
        origin = op.attributes.get("hlo.op")
        name = origin.data if isinstance(origin, StringAttr) else self._function
        file = self._state.node(f'!DIFile(filename: "{name} {op.name}", directory: "")')
        scope = self._state.node(f"!DILexicalBlockFile(scope: {self.subprogram}, file: {file}, discriminator: 0)")
        return f", !dbg {self._state.node(f'!DILocation(line: {self._ops}, column: 0, scope: {scope})')}"
