"""Print real XLA's text of a module, by jaxlib in a separate process, because a failed check inside XLA ends the process.

    python scripts/xla_text.py FILE [OPTION=VALUE...]      print the result of jaxlib's HloModule.to_string()

`XlaText` offers the same to other scripts. Options are the properties of jaxlib's `HloPrintOptions`; `preset` is one of
default, short_parsable, canonical and fingerprint. The default for the Python with jaxlib is the running one.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from json_child import JsonChild

# Sets of options that together show the effect of every option.
OPTIONS: dict[str, dict[str, bool | int | str]] = {
    "default": {},
    "short_parsable": {"preset": "short_parsable"},
    "canonical": {"preset": "canonical"},
    "fingerprint": {"preset": "fingerprint"},
    "no_layout": {"include_layout_in_shapes": False, "print_operand_shape": True, "compact_operands": True},
    "no_ids": {"print_ids": False, "print_metadata": False, "print_backend_config": False, "indent_amount": 1},
}
_PRESETS = {"default": "", "short_parsable": "short_parsable", "canonical": "canonical", "fingerprint": "fingerprint"}


class XlaText(JsonChild):
    """A process that reads HLO text with jaxlib and prints it again."""

    def __init__(self, python: str = sys.executable) -> None:
        super().__init__([python, __file__, "--serve"])

    def print(self, text: str, options: Mapping[str, bool | int | str] | None = None) -> tuple[str, str]:
        """Return (`ok`, XLA's text), (`error`, its message) or (`abort`, the last line that it wrote)."""
        answer, fatal = self.ask([text, dict(options or {})])
        return ("abort", fatal) if answer is None else (answer[0], answer[1])


def _print(text: str, options: Mapping[str, Any]) -> str:
    hlo: Any = importlib.import_module("jaxlib._hlo")
    module = hlo.hlo_module_from_text(text)
    if not options:
        return module.to_string()
    preset = _PRESETS[options.get("preset", "default")]
    chosen = getattr(hlo.HloPrintOptions, preset)() if preset else hlo.HloPrintOptions()
    for name, value in options.items():
        if name != "preset":
            setattr(chosen, name, value)
    return module.to_string(chosen)


def _serve() -> None:
    for line in sys.stdin:
        text, options = json.loads(line)
        try:
            answer = ["ok", _print(text, options)]
        except Exception as error:
            answer = ["error", str(error)]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        _serve()
        return
    file, *settings = sys.argv[1:]
    options = {name: _value(value) for name, _, value in (setting.partition("=") for setting in settings)}
    sys.stdout.write(_print(Path(file).read_text(encoding="utf-8"), options))


def _value(text: str) -> bool | int | str:
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text, text)


if __name__ == "__main__":
    main()
