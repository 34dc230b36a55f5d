"""Prove hlo-run on a GPU in at most nine minutes without a network: agreement, kernel times against XLA's, libraries, graphs.

    python scripts/gpu_proof.py --make_bundle proof.zip [--target h200] [--corpus FOLDER]      # anywhere, needs the dev extra
    python scripts/gpu_proof.py --bundle proof.zip [--wheels FOLDER] [--out FOLDER]            # on the machine with the GPU
    python scripts/gpu_proof.py --page FOLDER/gpu_proof.json                                   # writes docs/gpu_results.md

The first command compiles for the named GPU: the fusions of the emitters, a program for each library, and whole programs.
With the `dev` extra it also keeps XLA:GPU's kernels for the same fusions. The second command needs Python with
numpy, ml_dtypes and pycuda (for the libraries nvmath-python, nvidia-cudnn-frontend and cuda-bindings; for the tests xdsl and
llvmlite). `--wheels` first installs the wheels of a folder into a temporary place. Without `--bundle` it makes a bundle in the
output folder.

Sections: environment, libraries, fusions, models, xla (JAX with CUDA, if installed), tests (marked `cuda`). Each section
runs in its own process, so a fault on the device costs one row. `FOLDER/gpu_proof.json` holds all rows; it is
written after each section. The exit code is 1 if a row differs or fails. `--rehearse` runs everything on a stand-in for the
driver, which runs the PTX on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# The most seconds for each section. Their sum is less than the whole time, so that the last sections have enough.
BUDGETS = {"environment": 40, "libraries": 60, "fusions": 200, "models": 90, "xla": 110, "tests": 60}
_RESERVE_SECONDS = 15
_RESTARTS = 12
_EMITTERS_ONLY = "--xla_gpu_enable_triton_gemm=false --xla_disable_hlo_passes=triton-softmax-rewriter,fusion-block-level-rewriter"


def main() -> int:
    """Return the exit code: 0 if every row agrees or is skipped, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make_bundle", type=Path, metavar="ZIP")
    parser.add_argument("--bundle", type=Path, metavar="ZIP")
    parser.add_argument("--target", default="h200", help="GPU to compile for")
    parser.add_argument("--corpus", type=Path, help="folder with the folders emitters, optimized and models")
    parser.add_argument("--most", type=int, default=1000, help="the most modules of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first, without a network")
    parser.add_argument("--out", type=Path, default=Path("gpu_proof"))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", default=",".join(BUDGETS), help="sections, separated by commas")
    parser.add_argument("--rehearse", action="store_true", help="use stand-ins for the driver and the libraries")
    parser.add_argument("--page", type=Path, metavar="JSON")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--stop_at", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(HERE)]
    if arguments.page:
        from gpu.page import write_page

        write_page(arguments.page, ROOT / "docs")
        return 0
    if arguments.section:
        return _section(arguments)
    if arguments.make_bundle:
        _make(arguments, arguments.make_bundle)
        return 0
    return _prove(arguments)


def _make(arguments: argparse.Namespace, path: Path) -> None:
    from gpu.bundle import make_bundle
    from gpu.programs import programs

    with tempfile.TemporaryDirectory() as folder:
        files = programs(arguments.corpus, Path(folder), arguments.most)
        counts = make_bundle(path, files, arguments.target, arguments.jobs)
    print(f"{path}: " + ", ".join(f"{count} {what}" for what, count in counts.items()), flush=True)


def _section(arguments: argparse.Namespace) -> int:
    if arguments.rehearse:
        sys.path.insert(0, str(ROOT / "tests"))
        from host_cuda import install_stand_ins

        install_stand_ins()
    from gpu.sections import run_section

    return run_section(arguments.section, arguments.bundle, arguments.out / f"{arguments.section}.jsonl", arguments.stop_at)


def _prove(arguments: argparse.Namespace) -> int:
    begin = time.monotonic()
    end = begin + 60 * arguments.minutes
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as site:
        paths = [str(ROOT), str(HERE)]
        if arguments.wheels:
            _install(arguments.wheels, Path(site))
            paths.append(site)
        environment["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
        if arguments.bundle is None:
            arguments.bundle = out / "proof.zip"
            sys.path.append(site)
            _make(arguments, arguments.bundle)
        report: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "rehearsal": arguments.rehearse,
            "sections": {},
        }
        for name in arguments.only.split(","):
            left = end - time.monotonic() - _RESERVE_SECONDS
            if left > 0:
                report["sections"][name] = _run(name, arguments, environment, min(BUDGETS[name] * arguments.minutes / 9, left))
            else:
                report["sections"][name] = {"rows": [], "seconds": 0.0, "problem": "no time was left"}
            (out / "gpu_proof.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(summary(report), flush=True)
    bad = (r for s in report["sections"].values() for r in s["rows"] if r.get("status") in ("differs", "failed"))
    return int(any(True for _ in bad) or any(s.get("problem") for s in report["sections"].values()))


def _install(wheels: Path, site: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir"]
    files = [str(wheel) for wheel in sorted(wheels.glob("*.whl"))]
    subprocess.run([*command, "--target", str(site), *files], check=True)


def _run(name: str, arguments: argparse.Namespace, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """Run a section in its own process, with a new one after each fault, until it ends or its time is over."""
    begin = time.monotonic()
    rows = arguments.out / f"{name}.jsonl"
    rows.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--section", name, "--bundle", str(arguments.bundle), "--out", str(arguments.out)]
    command += ["--stop_at", str(begin + seconds - 5), *(["--rehearse"] if arguments.rehearse else [])]
    env = environment | ({"XLA_FLAGS": _EMITTERS_ONLY} if name == "xla" else {})
    problem = ""
    for _ in range(_RESTARTS):
        with (arguments.out / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
            try:
                code = process.wait(max(1.0, begin + seconds - time.monotonic()))
            except subprocess.TimeoutExpired:
                problem = f"stopped after {seconds:.0f} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
        if code == 0:
            problem = ""
            break
        problem = f"a process ended with code {code}; see {name}.log"
        if code != 3 and not _was_in_a_piece(rows):
            break
    return {"rows": _rows(rows, problem), "seconds": round(time.monotonic() - begin, 1), "problem": problem}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _was_in_a_piece(path: Path) -> bool:
    lines = _lines(path)
    return bool(lines) and "begin" in lines[-1]


def _rows(path: Path, problem: str) -> list[dict[str, Any]]:
    """Return the rows of a section. A piece that was begun and has no row ended its process, so it failed."""
    lines = _lines(path)
    rows = [line for line in lines if "begin" not in line]
    named = {row["name"] for row in rows}
    ended = [line["begin"] for line in lines if "begin" in line and line["begin"] not in named]
    return rows + [{"name": name, "status": "failed", "detail": problem or "its process ended"} for name in ended]


def summary(report: dict[str, Any]) -> str:
    """Return the tables to print at the end."""
    from gpu.page import device_line, tables

    lines = ["", device_line(report)]
    for name, section in report["sections"].items():
        counts = Counter(row["status"] for row in section["rows"])
        told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        lines.append(f"{name}: {told or 'nothing'} in {section['seconds']} s {section.get('problem', '')}".rstrip())
    for name, section in report["sections"].items():
        for row in section["rows"]:
            if row["status"] in ("differs", "failed"):
                lines.append(f"  {name}/{row['name']}: {row['status']}: {str(row.get('detail', ''))[:200]}")
    return "\n".join([*lines, "", *tables(report)])


if __name__ == "__main__":
    raise SystemExit(main())
