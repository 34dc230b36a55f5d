"""`hlo-tool completion`: prints what a shell needs to complete the flags of the three commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from hlo_run.execution.console import Console
from hlo_run.options.programs import FLAGS, OPT_FLAGS, Flags


@dataclass(frozen=True)
class _Flag:
    """A flag with its first sentence of help. `values` are its choices (empty: any value, or none for a boolean)."""

    name: str
    about: str
    values: tuple[str, ...]
    is_bool: bool


@click.command("completion", help="Print a script that completes the flags of hlo-run, hlo-opt and hlo-tool in SHELL.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script of a shell. For bash: `source <(hlo-tool completion bash)`."""
    console: Console = context.obj
    group = context.parent
    assert group is not None, "this is a subcommand"
    assert isinstance(group.command, click.Group)
    tools = group.command.list_commands(group)
    programs = {"hlo-run": _flags(FLAGS), "hlo-opt": _flags(OPT_FLAGS)}
    console.artefact({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](programs, tools))


def _flags(flags: Flags) -> list[_Flag]:
    found: list[_Flag] = []
    for name, info in flags.fields.items():
        about = str(info.metadata["help"]).partition(". ")[0].rstrip(".")
        found.append(_Flag(name, about, tuple(info.metadata["choices"]), info.type == "bool"))
    return found


def _word(flag: _Flag) -> str:
    """Return the flag as it is written before its value."""
    return f"--{flag.name}" if flag.is_bool else f"--{flag.name}="


def _bash(programs: Mapping[str, Sequence[_Flag]], tools: Sequence[str]) -> str:
    lines: list[str] = []
    for program, flags in programs.items():
        function = f"_{program.replace('-', '_')}"
        lines += [
            f"{function}() {{",
            '  local word="${COMP_LINE:0:COMP_POINT}"; word="${word##*[[:space:]]}"',
            '  case "$word" in',
        ]
        for flag in flags:
            if flag.values:
                values = " ".join(value for value in flag.values if value)
                lines.append(f"""    --{flag.name}=*) COMPREPLY=($(compgen -W '{values}' -- "${{word#*=}}")) ;;""")
        lines += [
            '    --*=*) COMPREPLY=($(compgen -f -- "${word#*=}")) ;;',
            f"""    -*) COMPREPLY=($(compgen -W '{" ".join(map(_word, flags))}' -- "$word"))""",
            '      [[ "${COMPREPLY[*]}" == *= ]] && compopt -o nospace ;;',
            '    *) COMPREPLY=($(compgen -f -- "$word")) ;;',
            "  esac",
            "}",
            f"complete -o filenames -F {function} {program}",
        ]
    lines.append(f"complete -o default -W '{' '.join(tools)}' hlo-tool")
    return "\n".join(lines)


def _zsh(programs: Mapping[str, Sequence[_Flag]], tools: Sequence[str]) -> str:
    lines = ["#compdef hlo-run hlo-opt hlo-tool"]
    for program, flags in programs.items():
        lines.append(f"_{program}() {{\n  _arguments \\")
        for flag in flags:
            about = _zsh_text(flag.about)
            values = f":value:({' '.join(value for value in flag.values if value)})" if flag.values else ":value:_files"
            lines.append(f"    '{_word(flag)}[{about}]{'' if flag.is_bool else values}' \\")
        lines.append("    '*:file:_files'\n}")
        lines.append(f"compdef _{program} {program}")
    lines.append(f"_hlo-tool() {{ _arguments '1:tool:({' '.join(tools)})' '*:file:_files' }}\ncompdef _hlo-tool hlo-tool")
    return "\n".join(lines)


def _zsh_text(text: str) -> str:
    """Return a text for a description in single quotes, where colons and brackets have a meaning."""
    quoted = text.replace("'", "'\\''")
    return "".join(f"\\{character}" if character in "[]:" else character for character in quoted)


def _fish(programs: Mapping[str, Sequence[_Flag]], tools: Sequence[str]) -> str:
    lines: list[str] = []
    for program, flags in programs.items():
        for flag in flags:
            about = flag.about.replace("\\", "\\\\").replace("'", "\\'")
            values = (
                f" -x -a '{' '.join(value for value in flag.values if value)}'" if flag.values else "" if flag.is_bool else " -r"
            )
            lines.append(f"complete -c {program} -l {flag.name} -d '{about}'{values}")
    lines.append(f"complete -c hlo-tool -n __fish_use_subcommand -a '{' '.join(tools)}'")
    return "\n".join(lines)
