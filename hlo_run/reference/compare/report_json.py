"""Convert a comparison to dicts, lists, numbers and strings for JSON; docs/report.md is the schema."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.reference.compare.compare import Comparison
from hlo_run.reference.compare.detectability import Detectability, total
from hlo_run.reference.compare.element_errors import ErrorSpec
from hlo_run.reference.compare.findings import ERROR_BOUNDS, MAGNITUDE_BOUNDS, Findings, Histograms, LeafFindings, TopMismatch
from hlo_run.reference.compare.leaf_comparison import LeafComparison, RoundingVerdict
from hlo_run.reference.compare.report import worst_errors
from hlo_run.reference.values import Array

Record: TypeAlias = dict[str, object]


def comparison_record(comparison: Comparison, findings: Findings | None) -> Record:
    """Return the record of a comparison; `findings` is None if it passed."""
    sights = comparison.sights()
    found = {found.leaf.path: found for found in findings.leaves} if findings is not None else {}
    return {
        "agrees": comparison.ok,
        "summary": comparison.summary(),
        "problem": comparison.problem,
        "shape": comparison.shape.to_string(layout=False),
        "bounds": _spec_record(comparison.spec),
        "elements": sum(leaf.shape.element_count for leaf in comparison.leaves),
        "mismatches": comparison.mismatches,
        "seen": sight_record(total(sights)),
        "fixed_bounds": comparison.fixed_bounds,
        "patterns": list(findings.patterns) if findings is not None else [],
        "arrays": [_leaf_record(leaf, seen, found.get(leaf.path)) for leaf, seen in zip(comparison.leaves, sights, strict=True)],
    }


def sight_record(sight: Detectability) -> Record:
    """Return the record of what a comparison sees: `elements` is the number that it sees, the others are not seen."""
    return {"elements": sight.seen, "zero": sight.zero, "too_small": sight.small, "not_finite": sight.not_finite}


def number(value: float) -> float | str:
    """Return a number for JSON; `nan`, `inf` and `-inf` become strings."""
    return value if math.isfinite(value) else str(value)


def element(value: object, dtype: DType) -> object:
    """Return one element for JSON, exactly: a complex number is a pair [real, imag]."""
    if dtype.kind == "pred":
        return bool(value)
    if dtype.is_integer:
        return int(np.asarray(value).astype(np.uint64 if dtype.is_unsigned else np.int64))
    if dtype.is_complex:
        pair: complex = np.asarray(value).astype(np.complex128).item()
        return [number(pair.real), number(pair.imag)]
    return number(float(np.asarray(value).astype(np.float64)))


def _spec_record(spec: ErrorSpec) -> Record:
    low = spec.low_precision
    return {
        "abs": number(spec.abs),
        "rel": number(spec.rel),
        "relaxed_nans": spec.relaxed_nans,
        "fewer_infs_ok": spec.fewer_infs_ok,
        "low_precision": {"type": low[0], "within_n_values": low[1]} if low else None,
    }


def _rounding_record(verdict: RoundingVerdict, dtype: DType) -> Record:
    first = verdict.first
    return {
        "explained": verdict.explained,
        "unexplained": verdict.unexplained,
        "largest_explained": number(verdict.largest),
        "is_lost": 0 < verdict.lost == verdict.explained,
        "lost": verdict.lost,
        "first_explained": {
            "index": list(first.index),
            "expected": element(first.expected, dtype),
            "actual": element(first.actual, dtype),
            "float64": None if first.precise is None else element(first.precise, DTYPES["c128" if dtype.is_complex else "f64"]),
            "allowed": number(first.allowed),
            "unit": "numbers of the type" if first.in_steps else "value",
            "is_jump": first.is_jump,
        }
        if first is not None
        else None,
    }


def _leaf_record(leaf: LeafComparison, sight: Detectability, found: LeafFindings | None) -> Record:
    dtype = leaf.shape.dtype
    record: Record = {
        "index": list(leaf.path),
        "shape": leaf.shape.to_string(layout=False),
        "agrees": leaf.ok,
        "problem": leaf.problem,
        "elements": leaf.shape.element_count,
        "mismatches": leaf.mismatches,
        "nan_mismatches": leaf.nan_mismatches,
        "seen": sight_record(sight),
        "rounding": _rounding_record(leaf.rounding, dtype) if leaf.rounding is not None else None,
        "worst": {
            name: {
                "error": number(worst.error),
                "index": list(worst.index),
                "expected": element(worst.expected, dtype),
                "actual": element(worst.actual, dtype),
            }
            for name, worst in worst_errors(leaf)
        },
    }
    return record if found is None or leaf.problem else record | _findings_record(found, dtype)


def _findings_record(found: LeafFindings, dtype: DType) -> Record:
    first = found.leaf.first
    assert first is not None, "a leaf that differs has a first wrong element"
    precise = found.precise
    return {
        "first": {
            "index": list(first.index),
            "expected": element(first.expected, dtype),
            "actual": element(first.actual, dtype),
        },
        "top_mismatches": [_mismatch_record(mismatch, dtype) for mismatch in found.top],
        "special_values": found.special.counts() if found.special is not None else None,
        "histograms": _histograms_record(found.histograms) if found.histograms is not None else None,
        "suggested_bounds": [{"abs": a, "rel": r} for a, r in found.bounds],
        "float64": {
            "nearer_to_expected": precise.nearer_to_expected,
            "nearer_to_actual": precise.nearer_to_actual,
            "expected_out_of_bounds": precise.expected_off,
        }
        if precise is not None
        else None,
        "patterns": list(found.patterns),
    }


def _mismatch_record(mismatch: TopMismatch, dtype: DType) -> Record:
    record: Record = {
        "index": list(mismatch.index),
        "expected": element(mismatch.expected, dtype),
        "actual": element(mismatch.actual, dtype),
    }
    if dtype.kind == "pred":
        return record
    record["abs_error"] = number(mismatch.abs_error)
    if dtype.is_integer:
        return record
    record |= {"rel_error": number(mismatch.rel_error), "ulp_error": number(mismatch.ulp_error)}
    return record | {"float64": None if mismatch.precise is None else element(mismatch.precise, dtype)}


def _histograms_record(histograms: Histograms) -> Record:
    ends = pairwise(MAGNITUDE_BOUNDS)
    return {
        "actual_magnitudes": [
            {"low": low, "high": number(high), "count": int(count), "mismatches": int(wrong)}
            for (low, high), count, wrong in zip(ends, histograms.magnitudes, histograms.wrong_magnitudes, strict=True)
        ],
        "exceeding_abs": histograms.exceeding_abs,
        "rel_errors_of_exceeding_abs": _at_least(histograms.rel_of_exceeding_abs),
        "exceeding_rel": histograms.exceeding_rel,
        "abs_errors_of_exceeding_rel": _at_least(histograms.abs_of_exceeding_rel),
    }


def _at_least(counts: Array | Sequence[int]) -> list[Record]:
    return [{"at_least": bound, "count": int(count)} for bound, count in zip(ERROR_BOUNDS, counts, strict=True)]
