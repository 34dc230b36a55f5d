"""Change saved executables at random, run them, and print those that end in another way than the documentation says.

    python3 scripts/venv.py python scripts/fuzz_executables.py [--cases N] [--seed N]

A file may end with exit code 0 to 5. It fails if it ends with 70 or an exception, or takes more than 10 seconds (of its
time limit of 2 seconds on the device) or 2 GiB. The exit code is 1 if a file fails; it is then in the folder that is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from executable_mutations import executables, mutated

from hlo_run.cli import run

_SECONDS, _BYTES = 10, 2 << 30
_FLAGS = ("--platform=Host", "--timeout=2", "--cache=off")


class _TooLong(BaseException):
    pass


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise _TooLong


def outcome(file: Path) -> tuple[str, str]:
    """Return how a run of the file ends, and what it prints."""
    printed = io.StringIO()
    signal.alarm(_SECONDS)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = run([*_FLAGS, str(file)])
        return str(code), printed.getvalue()
    except _TooLong:
        return "too long", printed.getvalue()
    except BaseException as error:  # nothing may leave the command; what does is the finding
        return f"{type(error).__name__}: {error}", printed.getvalue()
    finally:
        signal.alarm(0)


def main() -> int:
    """Run the changed files and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    signal.signal(signal.SIGALRM, _too_long)
    folder = Path(tempfile.mkdtemp(prefix="hlo-run-fuzz-"))
    originals = executables()
    counts: Counter[str] = Counter()
    slowest, failed = 0.0, 0
    for name, data in originals.items():
        (folder / "x.hlox").write_bytes(data)
        code, text = outcome(folder / "x.hlox")
        assert code == "0", f"{name}: {code}\n{text}"
    for case in range(flags.cases):
        source = random.Random(f"{flags.seed} {case}")
        name = source.choice(sorted(originals))
        file = folder / "x.hlox"
        file.write_bytes(mutated(originals[name], source))
        begin = time.monotonic()
        code, text = outcome(file)
        slowest = max(slowest, time.monotonic() - begin)
        counts[code] += 1
        if code not in tuple("012345"):
            failed += 1
            file.rename(folder / f"{flags.seed}_{case}.hlox")
            lines = [line for line in text.splitlines() if line.strip() and not line.startswith("**")]
            print(f"{name} {flags.seed}_{case}: {code}: {' | '.join(lines[-4:])[:400]}", flush=True)
    print(f"{flags.cases} files: {dict(sorted(counts.items()))}, slowest {slowest:.1f} s, {failed} failed, in {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
