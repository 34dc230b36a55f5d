"""Mutate small HLO texts for a given time; print what breaks, reduced, and with real XLA at hand what it judges otherwise.

    python3 scripts/venv.py python scripts/fuzz_text.py [--seconds N] [--seed N] [--xla PYTHON] [FOLDER...]

Without folders the texts of tests/data/fuzz are mutated. A text breaks if anything but an error of ours leaves
`hlo_run.parse`, if it takes more than 10 seconds or 4 GiB, or if the module it gives does not read back. With `--xla` (a
Python that has jaxlib) every text is also read by real XLA: `accepts` lists texts that only we accept, `refuses` texts
that only XLA accepts (its parser does not verify, so a verifier's message is no difference), `prints` different texts.
Exit code 1 if anything breaks.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import text_mutations
from xla_text import XlaText

from hlo_run.errors import HloRunError
from hlo_run.hlo.parser import parse_module
from hlo_run.ops.infer import infer_module

_SECONDS_FOR_A_TEXT = 10
_MEMORY_BYTES = 4 << 30


class _TooSlowError(Exception):
    pass


def _too_slow(signal_number: int, frame: FrameType | None) -> None:
    raise _TooSlowError


def breaks(text: str) -> str:
    """Return how a text breaks us, in a word that is the same for the same place in the code; empty if it does not."""
    # Of the processor, so that a busy machine breaks nothing.
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS_FOR_A_TEXT)
    try:
        text_mutations.check(text)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno} ({str(error)[:60]})"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ""


def judge(text: str, xla: XlaText) -> str:
    """Return how our reading differs from XLA's, empty if it does not."""
    status, expected = xla.ask(text)
    try:
        module = parse_module(text)
    except HloRunError as error:
        return f"refuses: {error.message[:90]}" if status == "ok" else ""
    if status == "error":
        return f"accepts: {_first_message(expected)}"
    try:
        infer_module(module)
    except HloRunError:
        return ""
    return "prints" if status == "ok" and "{...}" not in text and module.to_string() != expected else ""


def _first_message(text: str) -> str:
    found = [line.partition("error: ")[2] for line in text.splitlines() if "error: " in line]
    return (found or [text.strip()[-90:]])[0][:90]


def reduce(text: str, is_bad: Callable[[str], bool], seconds: float) -> str:
    """Return a smaller text that is still bad, by leaving out ever shorter runs of lines, then of characters."""
    ends = time.monotonic() + seconds
    for separator in ("\n", ""):
        parts = text.split("\n") if separator else list(text)
        size = len(parts) // 2
        while size and time.monotonic() < ends:
            place = 0
            while place < len(parts) and time.monotonic() < ends:
                shorter = parts[:place] + parts[place + size :]
                if is_bad(separator.join(shorter)):
                    parts = shorter
                else:
                    place += size
            size //= 2
        text = separator.join(parts)
    return text


def main() -> int:
    """Mutate until the time is over; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[text_mutations.FOLDER], metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--xla", metavar="PYTHON", help="a Python that has jaxlib")
    parser.add_argument("--reduce", type=float, default=10.0, metavar="SECONDS", help="time for making one find smaller")
    arguments = parser.parse_args()
    texts = [file.read_text(encoding="utf-8") for folder in arguments.folders for file in sorted(folder.glob("*.hlo"))]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _too_slow)
    xla = XlaText(arguments.xla) if arguments.xla else None
    generator = random.Random(arguments.seed)
    counts: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    ends = time.monotonic() + arguments.seconds
    while time.monotonic() < ends:
        steps = [(generator.randrange(1 << 16), generator.randrange(1 << 32)) for _ in range(generator.choice((1, 1, 2, 3)))]
        text = text_mutations.mutate(generator.choice(texts), steps)
        counts["texts"] += 1
        found = breaks(text)
        if found:
            broken[found] += 1
            if broken[found] == 1:
                _show(found, reduce(text, lambda shorter, found=found: breaks(shorter) == found, arguments.reduce))
        elif xla is not None and len(text) < 100_000:
            found = judge(text, xla)
            counts[found] += bool(found)
            if found and counts[found] == 1:
                _show(found, reduce(text, lambda shorter, found=found: judge(shorter, xla) == found, arguments.reduce))
    print(f"{counts['texts']} texts, {sum(broken.values())} break in {len(broken)} ways")
    return int(bool(broken))


def _show(found: str, text: str) -> None:
    print(f"==== {found}\n{text[:2000]}\n", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
