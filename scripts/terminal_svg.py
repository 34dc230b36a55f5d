"""Record commands as they appear in a terminal, as an SVG picture.

python3 scripts/venv.py python scripts/terminal_svg.py --out docs/images/gelu.svg --columns 124 \
    'hlo-run examples/gelu.hlo' 'hlo-run --stage=fusion-analysis examples/gelu.hlo'
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

# A line that the terminal erased (a spinner), and codes that move the cursor. Colours stay.
_ERASED = re.compile(r"[^\n]*\n\r?\x1b\[1A\r?\x1b\[2K|[^\n]*(?:\x1b\[2K|\r)")
_SHOW_CURSOR = re.compile(r"\x1b\[\?25[hl]")
_CURSOR = re.compile(r"\x1b\[\??[0-9;]*[A-HJKSTfhlsu]")


def main(arguments: list[str]) -> int:
    """Run every command and write the picture. Return the exit code of the first command that failed, or 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="+", help="each is one shell command")
    parser.add_argument("--out", type=Path, required=True, help="the SVG file")
    parser.add_argument("--title", default="hlo-run")
    parser.add_argument("--columns", type=int, default=112)
    parser.add_argument("--lines", type=int, default=24, help="the most lines of each output to show")
    options = parser.parse_args(arguments)
    console = Console(record=True, width=options.columns, file=StringIO(), force_terminal=True)
    failed = 0
    for command in options.commands:
        code, output = run_at_terminal(command, options.columns)
        failed = failed or code
        lines = output.rstrip().split("\n")
        shown = lines[: options.lines] + [f"... {len(lines) - options.lines} more lines"] * (len(lines) > options.lines)
        console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
        console.print(Text.from_ansi("\n".join(shown)))
        console.print()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(console.export_svg(title=options.title, unique_id="terminal"))
    return failed


def run_at_terminal(command: str, columns: int) -> tuple[int, str]:
    """Return (exit code, output) of a command whose stdout and stderr are one terminal of `columns` columns."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    child = subprocess.Popen(command, shell=True, stdout=follower, stderr=follower, stdin=subprocess.DEVNULL, env=environment)
    os.close(follower)
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux: the last writer closed its end
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(leader)
    text = _SHOW_CURSOR.sub("", b"".join(pieces).decode(errors="replace").replace("\r\n", "\n"))
    return child.wait(), _CURSOR.sub("", _ERASED.sub("", text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
