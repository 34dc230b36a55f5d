"""The summary behind the output of several files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_MEANING = {0: "fine", 1: "differ", 2: "cannot be read", 3: "invalid", 4: "unsupported", 5: "device errors", 6: "not seen"}
_MOST_NAMED = 20


def summary(results: Sequence[tuple[str, int, str]], files: int) -> str:
    """Return how many files ended with each exit code, the buckets of the failures, and the files that failed.

    `results` has (file, exit code, bucket) of each finished file, and `files` is the number of all.
    """
    counts = Counter(_MEANING.get(code, "bugs or crashes") for _, code, _ in results)
    done = str(files) if len(results) == files else f"{len(results)} of {files}"
    lines = [f"\n** {done} files: {', '.join(f'{count} {what}' for what, count in counts.most_common())} **"]
    failed = [(file, code, bucket) for file, code, bucket in results if code]
    if len(failed) > 1:
        from hlo_run.execution.signatures import bucket_table  # failures have loaded it

        lines += bucket_table(((bucket, file) for file, _, bucket in failed), most=_MOST_NAMED)
    lines += [f"  exit code {code}: {file}" for file, code, _ in failed[:_MOST_NAMED]]
    if len(failed) > _MOST_NAMED:
        lines.append(f"  and {len(failed) - _MOST_NAMED} more; --report_json=FILE lists all")
    return "\n".join(lines)
