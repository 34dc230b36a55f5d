"""Write docs/gpu_results.md and its plots from the JSON of a proof."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

_GOOD_RATIO = 1.1
_WORST = 12
# Below this many bytes a launch takes longer than moving the data.
_LARGE_BYTES = 4 << 20


def write_page(source: Path, docs: Path) -> None:
    """Write `gpu_results.md` and its plots into the folder `docs`."""
    report = json.loads(source.read_text(encoding="utf-8"))
    plots = docs / "images"
    plots.mkdir(exist_ok=True)
    names = write_plots(report, plots)
    (docs / "gpu_results.md").write_text(page(report, [f"images/{name}" for name in names]), encoding="utf-8")


def page(report: dict[str, Any], plots: list[str]) -> str:
    """Return the page in Markdown."""
    head = [
        "# Results on real GPUs",
        "",
        "`scripts/gpu_proof.py` measured these figures; `scripts/gpu_proof.py --page` wrote this page from its JSON.",
        "The help of the script says how to repeat it.",
        "",
        *(["**A rehearsal on stand-ins, without a GPU.**", ""] if report["rehearsal"] else []),
        f"{report['date']}: {device_line(report)}",
        "",
        "| section | agree | differ | failed | skipped | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_section_row(name, section) for name, section in report["sections"].items()),
        "",
    ]
    return "\n".join([*head, *tables(report), *(f"![{name}]({name})\n" for name in plots), *_exceptions(report)]).rstrip() + "\n"


def device_line(report: dict[str, Any]) -> str:
    """Return one line on the device and its speed."""
    rows = _by_name(report, "environment")
    machine, device, copy, empty = (rows.get(name, {}) for name in ("machine", "device", "copy", "empty launch"))
    parts = [device.get("description", "unknown device"), f"driver {machine.get('card', {}).get('driver_version', 'unknown')}"]
    if copy:
        parts.append(f"copy {copy['bytes_per_second'] / 1e9:.0f} GB/s")
    if empty:
        parts.append(f"empty launch {empty['microseconds']:.1f} us")
    return ", ".join(parts)


def tables(report: dict[str, Any]) -> list[str]:
    """Return the tables of times: fusions against XLA's kernels, libraries, whole programs."""
    return [*_fusion_tables(report), *_library_table(report), *_model_table(report)]


def _fusion_tables(report: dict[str, Any]) -> list[str]:
    rows = [row for row in _rows(report, "fusions") if row.get("ours_us")]
    both = [row for row in rows if row.get("xla_us")]
    if not rows:
        return []
    floor = _by_name(report, "environment").get("empty launch", {}).get("microseconds", 0.0)
    copy = _by_name(report, "environment").get("copy", {}).get("bytes_per_second", 0.0)
    lines = ["| kernels of fusions | |", "| --- | --- |", f"| timed | {len(rows)} |"]
    if both:
        ratios = [_ratio(row) for row in both]
        lines += [
            f"| timed with XLA's kernel for the same fusion | {len(both)} |",
            f"| time, geometric mean of ours / XLA's | {_mean(ratios):.3f} |",
            f"| ours slower by more than 10 % | {sum(ratio > _GOOD_RATIO for ratio in ratios)} |",
            f"| XLA's kernel differs from the reference | {sum(bool(row.get('xla_differs')) for row in both)} |",
        ]
        long = [_ratio(row) for row in both if min(row["ours_us"], row["xla_us"]) > 2 * floor]
        if long:
            lines.append(f"| the same, of the {len(long)} that take more than two empty launches | {_mean(long):.3f} |")
    large = [row["bytes"] / (row["ours_us"] / 1e6) / copy for row in rows if copy and row.get("bytes", 0) >= _LARGE_BYTES]
    if large:
        what = f"bandwidth of the {len(large)} that touch 4 MiB or more, share of a copy's, median"
        lines.append(f"| {what} | {statistics.median(large):.2f} |")
    if both:
        worst = sorted(both, key=lambda row: -_ratio(row))[:_WORST]
        lines += ["", "| slowest against XLA | ours, us | XLA, us | ratio | bytes |", "| --- | --- | --- | --- | --- |"]
        lines += [
            f"| {row['name']} | {row['ours_us']:.2f} | {row['xla_us']:.2f} | {_ratio(row):.2f} | {row['bytes']} |"
            for row in worst
        ]
    return [*lines, ""]


def _library_table(report: dict[str, Any]) -> list[str]:
    rows = _rows(report, "libraries")
    if not rows:
        return []
    lines = ["| libraries | status | graphs | left to numpy |", "| --- | --- | --- | --- |"]
    return [
        *lines,
        *(f"| {r['name']} | {r['status']} | {r.get('graphs', '')} | {_cell('; '.join(r.get('refused', [])))} |" for r in rows),
        "",
    ]


def _model_table(report: dict[str, Any]) -> list[str]:
    rows = [row for row in _rows(report, "models") if row.get("ours_us")]
    theirs = {row["name"]: row["xla_us"] for row in _rows(report, "xla") if row.get("xla_us")}
    both = [row for row in rows if row["name"] in theirs]
    if not rows:
        return []
    lines = ["| whole programs | ours, us | XLA through JAX, us | ratio | graphs |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        xla = theirs.get(row["name"])
        ratio = f"{row['ours_us'] / xla:.2f}" if xla else ""
        lines.append(
            f"| {row['name']} | {row['ours_us']:.0f} | {f'{xla:.0f}' if xla else ''} | {ratio} | {row.get('graphs', '')} |"
        )
    if both:
        lines.append(f"| geometric mean of {len(both)} | | | {_mean([r['ours_us'] / theirs[r['name']] for r in both]):.2f} | |")
    note = "Ours are times on the device (CUDA events); XLA's are wall-clock times of a call with arrays on the device."
    return [*lines, "", note, ""]


def _exceptions(report: dict[str, Any]) -> list[str]:
    found = [
        (name, row)
        for name, section in report["sections"].items()
        for row in section["rows"]
        if row["status"] in ("differs", "failed")
    ]
    lines = ["| exception | status | what |", "| --- | --- | --- |"] if found else []
    return [*lines, *(f"| {name}/{r['name']} | {r['status']} | {_cell(str(r.get('detail', '')))} |" for name, r in found)]


def write_plots(report: dict[str, Any], folder: Path) -> list[str]:
    """Write the plots that have data. Return their file names. Needs matplotlib (extra `plots`)."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "hlo-run"  # so that equal figures give equal bytes
    from matplotlib import pyplot as plt

    rows = [row for row in _rows(report, "fusions") if row.get("ours_us")]
    both = [row for row in rows if row.get("xla_us")]
    names: list[str] = []
    if both:
        ratios = sorted(_ratio(row) for row in both)
        figure, axes = plt.subplots(figsize=(7, 3.5))
        axes.plot(range(1, len(ratios) + 1), ratios, ".")
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set(yscale="log", xlabel="fusions, by ratio", ylabel="time, ours / XLA's")
        names.append(_save(figure, folder, "gpu_ratio.svg"))
    moved = [(row["bytes"], row["bytes"] / row["ours_us"] * 1e6) for row in rows if row.get("bytes")]
    if moved:
        figure, axes = plt.subplots(figsize=(7, 3.5))
        axes.plot([m[0] for m in moved], [m[1] for m in moved], ".", label="ours")
        theirs = [(row["bytes"], row["bytes"] / row["xla_us"] * 1e6) for row in both if row.get("bytes")]
        axes.plot([m[0] for m in theirs], [m[1] for m in theirs], "x", label="XLA", markersize=4)
        copy = _by_name(report, "environment").get("copy", {}).get("bytes_per_second")
        if copy:
            axes.axhline(copy, color="grey", linewidth=0.8, label="copy")
        axes.set(xscale="log", yscale="log", xlabel="bytes touched", ylabel="bytes per second")
        axes.legend()
        names.append(_save(figure, folder, "gpu_bandwidth.svg"))
    return names


def _save(figure: Any, folder: Path, name: str) -> str:
    figure.tight_layout()
    figure.savefig(folder / name, metadata={"Date": None})
    return name


def _section_row(name: str, section: dict[str, Any]) -> str:
    counts = Counter(row["status"] for row in section["rows"])
    numbers = " | ".join(str(counts[status]) for status in ("agrees", "differs", "failed", "skipped"))
    return f"| {name}{_note(section)} | {numbers} | {section['seconds']} |"


def _note(section: dict[str, Any]) -> str:
    return f" ({section['problem']})" if section.get("problem") else ""


def _rows(report: dict[str, Any], section: str) -> list[dict[str, Any]]:
    return report["sections"].get(section, {"rows": []})["rows"]


def _by_name(report: dict[str, Any], section: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in _rows(report, section)}


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _ratio(row: dict[str, Any]) -> float:
    return row["ours_us"] / row["xla_us"]


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
