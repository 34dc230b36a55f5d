"""Reduces the findings of a hunt: the failure that the judges see must stay, with arguments of any kind."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hlo_run.errors import HloRunError
from hlo_run.fuzz.arguments import DRAWS
from hlo_run.fuzz.case import FAILED
from hlo_run.fuzz.check import check, options_of
from hlo_run.fuzz.findings import Failure, Reduced
from hlo_run.fuzz.judges import JUDGES, Judges
from hlo_run.fuzz.subjects import Subject
from hlo_run.ops.parse import parse
from hlo_run.triage.reduce import Plan, Reducer
from hlo_run.triage.trials import trial_folder
from hlo_run.whole_files import write_whole


class JudgePredicate(Struct, frozen=True):
    """Asks judges about a file, with the options of a seed. The answer is the bucket of a failure: `wanted`, if it is one."""

    seed: int
    verify: str
    engine: str
    against: tuple[str, ...]
    wanted: str

    def ask(self, path: str) -> str:
        """Return the bucket, or nothing; to be called in a fork."""
        subject = Subject(self.seed, Path(path).read_text(encoding="utf-8"))
        judges = Judges(self.against)
        options = options_of(self.seed, self.verify, self.engine)
        found: list[str] = []
        try:
            for draw in range(len(DRAWS)):
                outcome = check(subject, options, judges.all, draw)
                found += [fault.signature.bucket for fault in outcome.faults if fault.kind == FAILED]
                if self.wanted in found:
                    return self.wanted
        finally:
            judges.stop()
        return found[0] if found else ""


class Keeper(Struct, frozen=True):
    """Writes failures to folders of a directory, and reduces them.

    A folder has the module as it was found (original.hlo), the smallest one with the same failure (reduced.hlo), and the
    signature, the details and the command lines (failure.txt).
    """

    folder: Path
    verify: str
    engine: str
    against: tuple[str, ...]
    seconds: float
    flags: Sequence[str]
    given: Sequence[str] = ()

    def reduce(self, failure: Failure, seconds_left: float) -> Reduced | None:
        """Keep and reduce a failure; None if it does not fail as a text with arguments of any kind."""
        seed, signature = failure.subject.seed, failure.fault.signature
        folder = self.folder / f"{_short(signature.stage, signature.kind)}_seed_{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(str(folder / "original.hlo"), failure.subject.text.encode())
        output = folder / "reduced.hlo"
        # The judge that found it is enough.
        against = (signature.stage,) if signature.stage in JUDGES else self.against
        command = shlex.join(
            ["hlo-fuzz", "--as_is", f"--seed={seed}", f"--against={','.join(against)}", *self.flags, str(output)]
        )
        found = shlex.join(
            ["hlo-fuzz", f"--seed={seed}", "--count=1", f"--against={','.join(self.against)}", *self.flags, *self.given]
        )
        predicate = JudgePredicate(seed, self.verify, self.engine, against, signature.bucket)
        reduced: Reduced | None = None
        with trial_folder() as trials:
            reducer = Reducer(predicate, Plan(str(output), 1, min(self.seconds, seconds_left), 0.0), trials)
            try:
                module = parse(failure.subject.text)
                if reducer.start(module, "-") == signature.bucket:
                    state = reducer.reduce()
                    opcodes = sorted({i.opcode for i in state.module.instructions} - {"parameter", "constant", "tuple"})
                    reduced = Reduced(str(folder), tuple(opcodes), state.size[1], command)
            except HloRunError as error:
                found += f"\nnot reduced: {error}"
        shown = f"{command}\n" if reduced is not None else ""
        source = f"made of {failure.subject.source}\n" if failure.subject.source else ""
        text = f"{signature.bucket}\n\n{shown}{found}\n{source}\n{failure.fault.details}\n"
        write_whole(str(folder / "failure.txt"), text.encode())
        return reduced


def _short(stage: str, kind: str) -> str:
    return f"{stage}_{kind}".replace(" ", "_")
