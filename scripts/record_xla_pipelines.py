"""Record the passes of real XLA:GPU in the order in which they run, for the test of the pass table.

    python3 scripts/venv.py python scripts/record_xla_pipelines.py FOLDER > tests/data/xla_pipelines.txt

FOLDER is where XLA:GPU dumped any module (`compile_gpu.py FILE --emitters-only --dump FOLDER
--flag=--xla_dump_module_metadata=true`). One line `pipeline<TAB>pass` per pass; a nested pipeline appears where it runs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main() -> None:
    (file,) = Path(sys.argv[1]).rglob("*.metadata.textproto")
    for block in file.read_text(encoding="utf-8").split("pass_metadata {")[1:]:
        fields = dict(re.findall(r'(pass_name|pipeline_name): "([^"]*)"', block))
        if fields["pass_name"] != "pipeline-start":
            print(f"{fields.get('pipeline_name', '')}\t{fields['pass_name']}")


if __name__ == "__main__":
    main()
