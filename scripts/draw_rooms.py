"""Draw the rooms of the package, layer by layer, and which room imports which: docs/images/rooms.svg.

    python3 scripts/venv.py python scripts/draw_rooms.py            # writes the picture
    python3 scripts/venv.py python scripts/draw_rooms.py --check    # exit code 1 if the picture is not current

The rooms and layers are those of the table in docs/architecture.md, the imports those of the package. The picture counts nothing,
so it changes only if a room appears, moves or goes, or if one room begins or ceases to import another.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from current_pictures import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hlo_run"
DOCUMENT = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"

_ROW = re.compile(r"^\| \d+ \| ((?:`[\w.]+`,? ?)+)\|", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*from hlo_run(?:\.([\w.]+))? import (\([^)]*\)|[^\n]*)", re.MULTILINE)
# These name what users import and start; no room imports them.
_FRONT = ("__init__", "__main__")

_CELL = 14
_LEFT, _TOP, _RIGHT = 146, 44, 120
_BANDS = ("#f6f8fa", "#ffffff")
_IMPORTED, _ROOM, _LAYER, _TEXT, _FAINT = "#0969da", "#1f2328", "#d0d7de", "#1f2328", "#57606a"


def layers(document: str) -> list[tuple[str, ...]]:
    """Return the rooms of each layer, from the table under the heading "Layers"."""
    table = document.partition("\n## Layers\n")[2].partition("\n## ")[0]
    return [tuple(re.findall(r"[\w.]+", row)) for row in _ROW.findall(table)]


def imports(package: Path, rooms: frozenset[str]) -> set[tuple[str, str]]:
    """Return (room, room that it imports) for all files of a package, imports inside functions included."""
    files = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    modules = {name.removesuffix(".__init__") for name in files}
    found: set[tuple[str, str]] = set()
    for name, path in files.items():
        if name not in _FRONT:
            room = _room(name, rooms)
            targets = _targets(path.read_text(encoding="utf-8"), modules)
            found |= {(room, other) for target in targets if (other := _room(target, rooms)) != room}
    return found


def _targets(text: str, modules: set[str]) -> Iterator[str]:
    """Yield the modules below the package that a file imports, or takes a name from."""
    for source, names in _IMPORT.findall(text):
        for name in re.findall(r"\w+(?: as \w+)?", re.sub(r"#[^\n]*", "", names)):
            module = f"{source}.{name.split()[0]}".removeprefix(".")
            yield module if module in modules else source


def _room(module: str, rooms: frozenset[str]) -> str:
    """Return the room that holds a module: its own name, or that of the nearest package around it."""
    while module not in rooms:
        assert "." in module, f"docs/architecture.md gives {module} no layer"
        module = module.rpartition(".")[0]
    return module


def draw(levels: Sequence[tuple[str, ...]], edges: set[tuple[str, str]]) -> str:
    """Return the picture: a row and a column for each room, and a mark where the row's room imports that of the column."""
    rooms = [room for level in levels for room in level]
    place = {room: number for number, room in enumerate(rooms)}
    side = _CELL * len(rooms)
    width, height = _LEFT + side + _RIGHT, _TOP + side + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="11">',
        "  <title>The rooms of hlo_run by layers, and which room imports which</title>",
        f'  <rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'  <text x="8" y="18" fill="{_TEXT}" font-size="13">Each line is a room. A blue mark: the room of the line imports '
        "the room whose black square is in the same column.</text>",
        f'  <text x="8" y="34" fill="{_FAINT}">Grey boxes are layers. All marks lie to the left of the boxes: a layer imports '
        "only layers above it.</text>",
    ]
    for number, level in enumerate(levels):
        start = place[level[0]] * _CELL
        size = _CELL * len(level)
        lines += [
            f'  <rect x="0" y="{_TOP + start}" width="{width}" height="{size}" fill="{_BANDS[number % 2]}"/>',
            f'  <text x="8" y="{_TOP + start + 11}" fill="{_FAINT}">{number}</text>',
            f'  <rect x="{_LEFT + start}" y="{_TOP + start}" width="{size}" height="{size}" fill="{_LAYER}"/>',
        ]
        lines += [f'  <path d="M{_LEFT + start} {_TOP + start}V{_TOP + side}" stroke="{_LAYER}"/>']
    for room in rooms:
        x, y = _LEFT + place[room] * _CELL, _TOP + place[room] * _CELL
        layer = next(level for level in levels if room in level)
        end = _LEFT + (place[layer[-1]] + 1) * _CELL
        lines += [
            f'  <text x="{_LEFT - 8}" y="{y + 11}" text-anchor="end" fill="{_TEXT}">{room}</text>',
            f'  <rect x="{x + 3}" y="{y + 3}" width="8" height="8" fill="{_ROOM}"/>',
            f'  <text x="{end + 6}" y="{y + 11}" fill="{_FAINT}">{room}</text>',
        ]
    for row, column in sorted(edges, key=lambda edge: (place[edge[0]], place[edge[1]])):
        x, y = _LEFT + place[column] * _CELL, _TOP + place[row] * _CELL
        lines.append(f'  <rect x="{x + 3}" y="{y + 3}" width="8" height="8" rx="4" fill="{_IMPORTED}"/>')
    return "\n".join([*lines, "</svg>", ""])


def picture() -> str:
    """Return the picture of the package as it is."""
    levels = layers(DOCUMENT.read_text(encoding="utf-8"))
    return draw(levels, imports(PACKAGE, frozenset(room for level in levels for room in level)))


def main() -> int:
    """Write or check the picture. Return the exit code."""
    return write_or_check(__doc__, PICTURE, picture)


if __name__ == "__main__":
    sys.exit(main())
