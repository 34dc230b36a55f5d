"""Record how real XLA's parser and printer handle small HLO texts, for tests that run without XLA.

    python3 scripts/venv.py python scripts/record_xla_text.py [--xla PYTHON] [FILE...]

Every `FILE.cases` (all in tests/data/hlo without arguments) holds texts with a line `====` between them. `FILE.json` beside
it gets one entry for each: the text, `status` (ok, error, or abort if a check inside XLA fails), and XLA's text
with each set of options, or its message. A text that XLA fills with made-up data (`{...}`) is refused, because this data depends
on the modules that XLA read before.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from xla_text import OPTIONS, XlaText

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "hlo"

# Files of many texts use fewer options, and are written without line breaks.
_FEWER_OPTIONS = {"literals": ("default", "short_parsable"), "opcodes": ("default", "short_parsable", "fingerprint", "no_ids")}


def record(file: Path, xla: XlaText) -> None:
    """Write XLA's answers for the texts of one file beside it."""
    entries: list[dict[str, object]] = []
    for text in file.read_text(encoding="utf-8").split("\n====\n"):
        status, shown = xla.print(text)
        assert "..." not in text or status != "ok", f"{file}: made-up data depends on what XLA read before"
        entry: dict[str, object] = {"text": text, "status": status}
        if status == "ok":
            answers = {name: xla.print(text, OPTIONS[name])[1] for name in _FEWER_OPTIONS.get(file.stem, OPTIONS)}
            entry["printed"] = {name: answer for name, answer in answers.items() if name == "default" or answer != shown}
        else:
            entry["message"] = shown
        entries.append(entry)
    text = json.dumps(entries, indent=None if file.stem in _FEWER_OPTIONS else 1, ensure_ascii=False)
    file.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    print(f"{file.name}: {len(entries)} texts")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--xla", default=sys.executable, metavar="PYTHON", help="a Python that has jaxlib")
    arguments = parser.parse_args()
    with XlaText(arguments.xla) as xla:
        for file in arguments.files or sorted(FOLDER.glob("*.cases")):
            record(file, xla)


if __name__ == "__main__":
    main()
