"""Record the fusions of real XLA:GPU and its cost estimates, for the tests of the fusion passes.

    python3 scripts/venv.py python scripts/record_xla_fusions.py tests/data/xla_fusions FOLDER..

FOLDER is where XLA:GPU dumped a module (`--xla_dump_hlo_pass_re=.*priority-fusion.*|.*multi_output_fusion.*`, without
Triton's passes). Each becomes NAME.json: the module before either pass, the contents of its fusions after it, and for every
producer XLA's estimated microseconds with and without fusing it first, or XLA's reason not to fuse it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import hlo_run
from hlo_run.analysis.fusion.fusion_contents import fusion_contents


def main() -> None:
    out, *folders = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        (steps,) = folder.glob("*.priority_fusion_dump.txt")
        record = {
            "priority-fusion": _around(folder, "priority-fusion"),
            "multi_output_fusion": _around(folder, "multi_output_fusion"),
            **_first_steps(steps.read_text(encoding="utf-8")),
        }
        (out / f"{folder.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _around(folder: Path, name: str) -> dict[str, object]:
    (before,) = folder.glob(f"*.before_{name}.txt")
    (after,) = folder.glob(f"*.after_{name}.before_*.txt")
    fusions = fusion_contents(hlo_run.parse(after.read_text(encoding="utf-8")))
    return {"before": before.read_text(encoding="utf-8").rstrip(), "fusions": dict(sorted(fusions.items()))}


def _first_steps(text: str) -> dict[str, dict[str, object]]:
    """Return the estimates or reasons for each producer before the first fusion."""
    weighed: dict[str, object] = {}
    refused: dict[str, object] = {}
    for block in re.findall(r"fusion_steps \{\n(.*?)\n\}\n", text, re.DOTALL):
        fields = dict(re.findall(r'(\w+): "?([^"\n]*)"?', block))
        producer = fields["producer_name"]
        if "fusion {" in block:
            break
        if "update_priority" in block:
            weighed.setdefault(producer, [float(fields["us_fused"]), float(fields["us_unfused"])])
        else:
            refused.setdefault(producer, fields["reason"])
    return {"weighed": weighed, "refused": refused}


if __name__ == "__main__":
    main()
