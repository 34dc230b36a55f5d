"""Mutate small HLO texts for a given time and print texts that break the parser, reduced; with real XLA, also other verdicts.

    python3 scripts/venv.py python scripts/fuzz_text.py [--seconds N] [--seed N] [--xla PYTHON] [PATH...]

`scripts/fuzz_inputs.py` calls the whole command on mutated inputs of all formats, this text among them. This script holds the
parser alone against its own printer and against XLA's parser.

A path is a folder of `.hlo` files, one such file, or a file with `====` between texts. The default is the texts of
tests/data/fuzz. A text breaks if `hlo_run.parse` raises anything but an HloRunError, if it takes more than 10 seconds or 4 GiB,
or if the resulting module does not read back. With `--xla` (a Python that has jaxlib) real XLA reads every text as well:
`accepts` lists texts that only we accept, `refuses` texts that only XLA accepts (its parser does not verify, so a verifier's
message is not a difference), `prints` texts that the two print differently, and `known` accepted differences, with the reason in
docs/refused.md. The exit code is 1 if it finds anything else.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import signal
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import text_mutations
from xla_print_options import as_xla_prints
from xla_text import OPTIONS, XlaText

from hlo_run.errors import HloRunError
from hlo_run.hlo.text.parser import parse_module
from hlo_run.ops.infer import infer_module
from hlo_run.ops.verify import verify

# Accepted differences, each with the message that identifies it. docs/refused.md has the reasons.
KNOWN = {
    "a layout that names no dimension or one twice": re.compile(r"the minor to major order"),
    "a shape whose bytes no 64-bit number counts": re.compile(r"the size of shape .* in bytes does not fit into 64 bits"),
    "a number of a layout that takes 64 bits": re.compile(r"a number of the layout's .* does not fit into 64 bits"),
    "what is beyond every machine": re.compile(
        r"more than any device can hold|is too large to fill|exceed the limit of|out of memory for the constant"
    ),
    "replica groups or tiles of another size than their devices": re.compile(r"tiles (do not match|need|cannot take)"),
    "a transposition of devices that is none": re.compile(r"iota_transpose_perm (must|should)"),
    "labels of dimensions that are not there": re.compile(r"expects \[0-\d(bf|io)\?\] in \w+ dimension numbers"),
    "window reversals of another number than dimensions": re.compile(r"'rhs_reversal=' has the same size"),
    "an alias without a number of its parameter": re.compile(r"expects entries like"),
    "a literal that leaves out a tuple's elements": re.compile(r"expects .*, but sees '\)'$"),
    "a scaled-dot without its shape": re.compile(r"Cannot infer shape for dot operation"),
    "attributes of later versions": re.compile(r'unexpected attribute "(is_stable|has_dynamic_root)"'),
}
# Errors of an operand that XLA leaves out, if the opcode takes any number of operands.
_LEFT_OUT = re.compile(
    r"expects (an operand|\d+ operands)|attribute \w+ is expected|instruction does not exist|cannot infer shape"
)
# Layout properties, and those that XLA reads the same way inside and outside of tuples.
_PROPERTIES = re.compile(r"\[[^\]]*\]\s*\{[\d,\s]*:([^{}]*)\}")
_SAME_IN_TUPLES = re.compile(r"(T(\((0*[1-9]\d*|\*)(,(0*[1-9]\d*|\*))*\))+)?(L\(\d+\))?(E\(\d+\))?(S\(-?\d+\))?(M\(-?\d+\))?")
_OPENS_OPERANDS = re.compile(r"[a-z][a-z0-9\-]*\s*$")
_SECONDS_FOR_A_TEXT = 10
_MEMORY_BYTES = 4 << 30
# XLA takes long for longer texts, most of which are deep nests.
_JUDGED_CHARACTERS = 30_000


class _TooSlowError(Exception):
    pass


def _too_slow(signal_number: int, frame: FrameType | None) -> None:
    raise _TooSlowError


def breaks(text: str) -> str:
    """Return how a text breaks us, as a phrase that is equal for the same place in the code; empty if it does not."""
    # Processor time, so that a busy machine causes no finds.
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
    """Return how our reading differs from XLA's, as a phrase that is equal for similar texts; empty if it does not."""
    label = sorted(OPTIONS)[zlib.crc32(text.encode()) % len(OPTIONS)]
    status, expected = xla.print(text, OPTIONS[label])
    if status == "abort":
        return ""
    try:
        module = parse_module(text)
    except HloRunError as error:
        if status == "ok" and _is_left_out(text, error):
            return "known: an operand that XLA leaves out"
        return _find("refuses", error.message) if status == "ok" else ""
    try:
        infer_module(module)
        verified = status == "ok" or verify(module) is None
    except HloRunError:
        return ""
    if status == "error":
        if verified and not all(_SAME_IN_TUPLES.fullmatch(properties) for properties in _PROPERTIES.findall(text)):
            return "known: layout properties in a tuple"
        return _find("accepts", _first_message(expected)) if verified else ""
    if "{...}" in text:
        # XLA makes up the data, from a counter that continues over modules.
        return ""
    return "" if as_xla_prints(module, label) == expected else f"prints as {label}"


def _is_left_out(text: str, error: HloRunError) -> bool:
    """True if the error is about an operand, at a place inside the parentheses of an instruction's operands."""
    if error.where is None or not _LEFT_OUT.search(error.message):
        return False
    lines = text.split("\n")[: error.where.line]
    before = "\n".join([*lines[:-1], lines[-1][: error.where.column - 1]])
    closed = 0
    for place in range(len(before) - 1, -1, -1):
        closed += {")": 1, "(": -1}.get(before[place], 0)
        if closed < 0:
            return bool(_OPENS_OPERANDS.search(before[:place]))
        if before[place] in "{}":
            return False
    return False


def _find(what: str, message: str) -> str:
    """Return a find with its message, without names and numbers. An accepted difference is marked `known`."""
    known = next((name for name, pattern in KNOWN.items() if pattern.search(message)), "")
    if known:
        return f"known: {known}"
    return f"{what}: " + re.sub(r"'[^']*'|\{[^{}]*\}|[\w.%]*\d[\w.]*", "_", message)[:90]


def _first_message(text: str) -> str:
    found = [line.partition("error: ")[2] for line in text.splitlines() if "error: " in line]
    return (found or [text.strip()[-90:]])[0]


def reduce(text: str, is_bad: Callable[[str], bool], seconds: float) -> str:
    """Return a smaller text that is still bad. Remove ever shorter runs of lines, then of characters."""
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


def texts_of(path: Path) -> list[str]:
    """Return the texts of a folder, of one `.hlo` file, or of one `.cases` file with `====` between texts."""
    files = sorted(path.glob("*.hlo")) if path.is_dir() else [path]
    return [text for file in files for text in file.read_text(encoding="utf-8").split("\n====\n")]


def fuzz(texts: list[str], seed: int, seconds: float, xla: XlaText | None, reduce_seconds: float) -> Counter[str]:
    """Mutate until the time is over, and print the first text of each kind of find. Return the count of each kind."""
    generator = random.Random(seed)
    finds: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        steps = [(generator.randrange(1 << 16), generator.randrange(1 << 32)) for _ in range(generator.choice((1, 1, 2, 3)))]
        text = text_mutations.mutate(generator.choice(texts), steps)
        finds["texts"] += 1
        test: Callable[[str], str] = breaks
        found = breaks(text)
        if not found and xla is not None and len(text) < _JUDGED_CHARACTERS:
            test = partial(judge, xla=xla)
            found = test(text)
        if found:
            finds[found] += 1
            if finds[found] == 1 and not found.startswith("known"):
                smaller = reduce(text, lambda shorter, found=found, test=test: test(shorter) == found, reduce_seconds)
                print(f"==== {found}\n{smaller[:2000]}\n", flush=True)
    return finds


def main() -> int:
    """Mutate until the time is over and print the finds. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[text_mutations.FOLDER], metavar="PATH")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--xla", metavar="PYTHON", help="a Python that has jaxlib")
    parser.add_argument("--reduce", type=float, default=10.0, metavar="SECONDS", help="time to reduce one find")
    arguments = parser.parse_args()
    texts = [text for path in arguments.paths for text in texts_of(path)]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _too_slow)
    xla = XlaText(arguments.xla) if arguments.xla else None
    finds = fuzz(texts, arguments.seed, arguments.seconds, xla, arguments.reduce)
    print(f"{finds.pop('texts')} texts mutated")
    for found, count in finds.most_common():
        print(f"{count:6} {found}")
    return int(any(not found.startswith("known") for found in finds))


if __name__ == "__main__":
    raise SystemExit(main())
