"""`hlo-tool completion`: prints what a shell needs to complete the flags of the commands and of hlo-tool's tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
from msgspec import Struct

from hlo_run.execution.console import Console
from hlo_run.fuzz.judges import JUDGES
from hlo_run.options.programs import FLAGS, OPT_FLAGS, Flags
from hlo_run.options.stages import OPT_STAGE_TEXTS, STAGE_TEXTS
from hlo_run.records import replace
from hlo_run.target import ALIASES, PRESETS

# The placeholders of values that are lists.
_LISTS = ("ROWS", "NAMES", "CHECKS", "PASSES")


class _Flag(Struct, frozen=True):
    """A flag with its first sentence of help. `values` are its choices (empty: any value, or none for a boolean).

    The value of a flag that `is_list` is a list of choices with commas between them.
    """

    name: str
    about: str
    values: tuple[str, ...]
    is_bool: bool
    is_list: bool = False


@click.command("completion", help="Print a script that completes the flags of hlo-run, hlo-opt, hlo-tool and hlo-fuzz in SHELL.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script of a shell. For bash: `source <(hlo-tool completion bash)`."""
    console: Console = context.obj
    group = context.parent
    assert group is not None, "this is a subcommand"
    assert isinstance(group.command, click.Group)
    commands = {name: group.command.get_command(group, name) for name in group.command.list_commands(group)}
    tools = {name: _tool_flags(tool) for name, tool in commands.items() if tool is not None}
    programs = {"hlo-run": _flags(FLAGS), "hlo-opt": _flags(OPT_FLAGS), "hlo-fuzz": tools["fuzz"]}
    console.artefact({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](programs, tools))


def _flags(flags: Flags) -> list[_Flag]:
    found: list[_Flag] = []
    for name, info in flags.fields.items():
        about = str(info.metadata["help"]).partition(". ")[0].rstrip(".")
        choices: tuple[str, ...] = info.metadata["choices"]
        values = tuple(choice for choice in choices if choice) or _values(name, flags is OPT_FLAGS)
        found.append(_Flag(name, about, values, info.type == "bool", info.metadata["metavar"] in _LISTS))
    return found + [replace(flag, name=short) for short, name in flags.short_names.items() for flag in found if flag.name == name]


def _tool_flags(tool: click.Command) -> list[_Flag]:
    """Return the long options of a tool."""
    found: list[_Flag] = []
    for option in tool.params:
        long = [word.removeprefix("--") for word in option.opts if word.startswith("--")]
        if not isinstance(option, click.Option) or not long:
            continue
        values = tuple(map(str, option.type.choices)) if isinstance(option.type, click.Choice) else ()
        is_list = option.name == "against"
        about = (option.help or "").partition(". ")[0].rstrip(".")
        found.append(_Flag(long[0], about, JUDGES if is_list else values, option.is_flag, is_list))
    return found


def _values(name: str, is_opt: bool) -> tuple[str, ...]:
    """Return the words that a flag of hlo-run or hlo-opt without choices takes often: stages, rows, platforms, GPUs, .."""
    from hlo_run.pipeline.kernel_table import KERNEL_PIPELINE
    from hlo_run.pipeline.table import HLO_PIPELINE

    rows = [*(row.name for group in HLO_PIPELINE for _, row in group.all_rows()), *(row.name for row in KERNEL_PIPELINE)]
    match name:
        case "stage":
            return (*OPT_STAGE_TEXTS,) if is_opt else (*dict.fromkeys((*STAGE_TEXTS, *rows)),)
        case "golden_stages":
            return ("all", "numbers", "resources", *STAGE_TEXTS)
        case "xla_disable_hlo_passes" | "xla_enable_hlo_passes_only" | "passes":
            return (*dict.fromkeys(rows),)
        case "platform":
            return ("transforms", "gpu") if is_opt else ("CUDA", "Host", "Interpreter")
        case "reference_platform":
            return ("Interpreter", "CPU", "CUDA", "Host")
        case "target":
            return (*ALIASES, *PRESETS)
        case "host_check":
            return ("all", "bounds", "align", "barrier", "init", "race", "statistics")
        case "input_format":
            return ("hlo", "txt", "pb", "pbtxt", "textproto", "stablehlo", "mhlo", "mlir", "mlirbc")
        case "explain":
            return ("fusion",)
        case _:
            return ()


def _word(flag: _Flag) -> str:
    """Return the flag as it is written before its value."""
    return f"--{flag.name}" if flag.is_bool else f"--{flag.name}="


def _function(program: str) -> str:
    return f"_{program.replace('-', '_')}"


def _bash(programs: Mapping[str, Sequence[_Flag]], tools: Mapping[str, Sequence[_Flag]]) -> str:
    lines: list[str] = []
    for program, flags in programs.items():
        lines += [*_bash_function(_function(program), flags), f"complete -o filenames -F {_function(program)} {program}"]
    for tool, flags in tools.items():
        lines += _bash_function(_function(f"hlo-tool-{tool}"), flags)
    return "\n".join(
        [
            *lines,
            "_hlo_tool() {",
            '  local line="${COMP_LINE:0:COMP_POINT}" tool',
            '  line="${line#*[[:space:]]}"; tool="${line%%[[:space:]]*}"',
            f"""  [[ "$line" == "$tool" ]] && {{ COMPREPLY=($(compgen -W '{" ".join(tools)}' -- "$tool")); return; }}""",
            '  tool="_hlo_tool_${tool//-/_}"; declare -F "$tool" > /dev/null && "$tool"',
            "}",
            "complete -o filenames -F _hlo_tool hlo-tool",
        ]
    )


def _bash_function(function: str, flags: Sequence[_Flag]) -> list[str]:
    lines = [
        f"{function}() {{",
        '  local line="${COMP_LINE:0:COMP_POINT}" word before value list=""',
        '  word="${line##*[[:space:]]}"; before="${line%"$word"}"; before="${before%"${before##*[![:space:]]}"}"',
        '  before="${before##*[[:space:]]}"; value="${word#*=}"',
        # The value may be a word of its own.
        '  case "$before" in --*=*) ;; --*) [[ "$word" == -* ]] || word="$before=$word" ;; esac',
        '  [[ "$value" == *,* ]] && list="${value%,*},"',
        '  case "$word" in',
    ]
    for flag in flags:
        if flag.values:
            words = f"-W '{' '.join(flag.values)}'"
            found = f"""-P "$list" {words} -- "${{value##*,}}\"""" if flag.is_list else f'{words} -- "$value"'
            lines.append(f"    --{flag.name}=*) COMPREPLY=($(compgen {found})) ;;")
    return [
        *lines,
        '    --*=*) COMPREPLY=($(compgen -f -- "$value")) ;;',
        f"""    -*) COMPREPLY=($(compgen -W '{" ".join(map(_word, flags))}' -- "$word"))""",
        '      [[ "${COMPREPLY[*]}" == *= ]] && compopt -o nospace ;;',
        '    *) COMPREPLY=($(compgen -f -- "$word")) ;;',
        "  esac",
        "}",
    ]


def _zsh(programs: Mapping[str, Sequence[_Flag]], tools: Mapping[str, Sequence[_Flag]]) -> str:
    lines = [f"#compdef {' '.join(programs)} hlo-tool"]
    for program, flags in programs.items():
        lines += [*_zsh_function(f"_{program}", flags), f"compdef _{program} {program}"]
    for tool, flags in tools.items():
        lines += _zsh_function(f"_hlo-tool-{tool}", flags)
    return "\n".join(
        [
            *lines,
            "_hlo-tool() {",
            f"  (( CURRENT == 2 )) && {{ compadd - {' '.join(tools)}; return }}",
            "  local tool=_hlo-tool-$words[2]; shift words; (( CURRENT -= 1 ))",
            "  (( $+functions[$tool] )) && $tool",
            "}",
            "compdef _hlo-tool hlo-tool",
        ]
    )


def _zsh_function(function: str, flags: Sequence[_Flag]) -> list[str]:
    lines = [f"{function}() {{\n  _arguments \\"]
    for flag in flags:
        about = _zsh_text(flag.about)
        words = " ".join(flag.values)
        choices = f":value:_sequence compadd - {words}" if flag.is_list else f":value:({words})"
        values = choices if flag.values else ":value:_files"
        lines.append(f"    '{_word(flag)}[{about}]{'' if flag.is_bool else values}' \\")
    return [*lines, "    '*:file:_files'\n}"]


def _zsh_text(text: str) -> str:
    """Return a text for a description in single quotes, where colons and brackets have a meaning."""
    quoted = text.replace("'", "'\\''")
    return "".join(f"\\{character}" if character in "[]:" else character for character in quoted)


def _fish(programs: Mapping[str, Sequence[_Flag]], tools: Mapping[str, Sequence[_Flag]]) -> str:
    lines = [_fish_line(program, flag) for program, flags in programs.items() for flag in flags]
    lines.append(f"complete -c hlo-tool -n __fish_use_subcommand -a '{' '.join(tools)}'")
    for tool, flags in tools.items():
        lines += [_fish_line(f"hlo-tool -n '__fish_seen_subcommand_from {tool}'", flag) for flag in flags]
    return "\n".join(lines)


def _fish_line(program: str, flag: _Flag) -> str:
    about = flag.about.replace("\\", "\\\\").replace("'", "\\'")
    words = " ".join(flag.values)
    choices = f" -x -a '(__fish_append , {words})'" if flag.is_list else f" -x -a '{words}'"
    values = choices if flag.values else "" if flag.is_bool else " -r"
    return f"complete -c {program} -l {flag.name} -d '{about}'{values}"
