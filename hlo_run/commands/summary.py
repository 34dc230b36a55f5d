"""The summary behind the output of several files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_MEANING = {0: "fine", 1: "differ", 2: "cannot be read", 3: "invalid", 4: "unsupported", 5: "device errors", 6: "not seen"}
_MOST_NAMED = 20


def summary(files: Sequence[str], codes: Sequence[int]) -> str:
    """Return how many of the files ended with each exit code, and the names of the first that failed."""
    counts = Counter(_MEANING.get(code, "bugs or crashes") for code in codes)
    lines = [f"\n** {len(codes)} files: {', '.join(f'{count} {what}' for what, count in counts.most_common())} **"]
    failed = [(file, code) for file, code in zip(files, codes, strict=False) if code]
    lines += [f"  exit code {code}: {file}" for file, code in failed[:_MOST_NAMED]]
    if len(failed) > _MOST_NAMED:
        lines.append(f"  and {len(failed) - _MOST_NAMED} more")
    return "\n".join(lines)
