"""The sharding rules of instructions, written as Shardy writes them."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.errors import Unsupported
from hlo_run.sharding.shardy.rule import Kind, Mapping, Rule
from hlo_run.sharding.shardy.rules import rule_of

_LETTERS = "ijklmnopqrstuvwxyz"
_ADD = "a { x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT s = f32[] add(x, y) }\n"
_SCANS = """step { x = f32[8] parameter(0) c = f32[8] parameter(1) s = f32[8] add(x, c) ROOT t = (f32[8], f32[8]) tuple(s, s) }
fold { x = f32[8] parameter(0) c = f32[] parameter(1) s = f32[] reduce(x, c), dimensions={0}, to_apply=a
  ROOT t = (f32[], f32[]) tuple(s, s) }
"""


def _text(rule: Rule) -> str:
    """Return a rule as Shardy prints it: the mappings, and the factors of each kind."""

    def array(mapping: Mapping) -> str:
        return "[" + ", ".join("".join(_LETTERS[factor] for factor in factors) for factors in mapping) + "]"

    sides = ["(" + ", ".join(map(array, side)) + ")" for side in (rule.operands, rule.results)]
    text = f"{sides[0]}->{sides[1]} {{" + ", ".join(f"{_LETTERS[n]}={size}" for n, size in enumerate(rule.sizes)) + "}"
    for word, kind in (("reduction", Kind.REDUCTION), ("need_replication", Kind.REPLICATE), ("permutation", Kind.PERMUTE)):
        if factors := [_LETTERS[n] for n, found in enumerate(rule.kinds) if found is kind]:
            text += f" {word}={{{', '.join(factors)}}}"
    if rule.blocked:
        text += f" blocked={{{', '.join(_LETTERS[n] for n in sorted(rule.blocked))}}}"
    return text


# Parameters, an instruction that reads them, and its rule.
CASES = {
    "elementwise": ("f32[4,8] f32[4,8]", "f32[4,8] add(p0, p1)", "([i, j], [i, j])->([i, j]) {i=4, j=8}"),
    "scalar-clamp": ("f32[] f32[4] f32[]", "f32[4] clamp(p0, p1, p2)", "([], [i], [])->([i]) {i=4}"),
    "dot": (
        "f32[2,4,8] f32[2,8,16]",
        "f32[2,4,16] dot(p0, p1), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
        "([i, j, l], [i, l, k])->([i, j, k]) {i=2, j=4, k=16, l=8} reduction={l}",
    ),
    "ragged-rows": (
        "f32[32,16] f32[4,16,8] s32[4]",
        """f32[32,8] ragged-dot(p0, p1, p2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0},
          rhs_group_dims={0}""",
        "([i, k], [l, k, j], [l])->([i, j]) {i=32, j=8, k=16, l=4} reduction={k} need_replication={i, l}",
    ),
    "ragged-sum": (
        "f32[6,32,16] f32[6,16,8] s32[6,4]",
        """f32[4,6,32,8] ragged-dot(p0, p1, p2), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2},
          rhs_contracting_dims={1}, lhs_ragged_dims={2}""",
        "([i, j, l], [i, l, k], [i, m])->([m, i, j, k]) {i=6, j=32, k=8, l=16, m=4} need_replication={l, m}",
    ),
    "given": (
        "f32[8,16] f32[16,4]",
        """f32[4,8] custom-call(p0, p1), custom_call_target="mine", frontend_attributes={xla.sdy.sharding_rule=
          "#sdy.op_sharding_rule<([ij, kl], [kl, m])->([m, ij]) {i=4, j=2, k=2, l=8, m=4} reduction={k, l} permutation={m}
          blocked_propagation={j}, custom>"}""",
        "([ij, kl], [kl, m])->([m, ij]) {i=4, j=2, k=2, l=8, m=4} reduction={k, l} permutation={m} blocked={j}",
    ),
    "reshape-split": ("f32[8,6]", "f32[2,4,6] reshape(p0)", "([ij, k])->([i, j, k]) {i=2, j=4, k=6}"),
    "reshape-mixed": ("f32[2,3]", "f32[3,2] reshape(p0)", "([i, k])->([j, l]) {i=2, j=3, k=3, l=2}"),
    "reshape-ones": ("f32[4,1,8]", "f32[4,8,1] reshape(p0)", "([i, j, k])->([i, k, l]) {i=4, j=1, k=8, l=1}"),
    "transpose": ("f32[4,8]", "f32[8,4] transpose(p0), dimensions={1,0}", "([j, i])->([i, j]) {i=8, j=4}"),
    "broadcast": ("f32[8]", "f32[4,8] broadcast(p0), dimensions={1}", "([j])->([i, j]) {i=4, j=8}"),
    "slice": ("f32[8,4]", "f32[6,4] slice(p0), slice={[0:6], [0:4]}", "([i, j])->([i, j]) {i=8, j=4} permutation={i}"),
    "pad": ("f32[8,4] f32[]", "f32[10,4] pad(p0, p1), padding=1_1x0_0", "([i, j], [])->([i, j]) {i=8, j=4} permutation={i}"),
    "concatenate": (
        "f32[4] f32[6]",
        "f32[10] concatenate(p0, p1), dimensions={0}",
        "([i], [i])->([i]) {i=10} need_replication={i}",
    ),
    "reduce": (
        "f32[4,8] f32[]",
        "f32[8] reduce(p0, p1), dimensions={0}, to_apply=a",
        "([i, j], [])->([j]) {i=4, j=8} reduction={i}",
    ),
    "reduce-window": (
        "f32[4,8] f32[]",
        "f32[4,4] reduce-window(p0, p1), window={size=1x2 stride=1x2}, to_apply=a",
        "([i, j], [])->([i, j]) {i=4, j=4} permutation={j}",
    ),
    "dynamic-slice": (
        "f32[8,4] s32[] s32[]",
        "f32[2,4] dynamic-slice(p0, p1, p2), dynamic_slice_sizes={2,4}",
        "([i, j], [], [])->([i, j]) {i=8, j=4} need_replication={i} blocked={i}",
    ),
    "dynamic-update-slice": (
        "f32[8,4] f32[2,4] s32[] s32[]",
        "f32[8,4] dynamic-update-slice(p0, p1, p2, p3)",
        "([i, k], [j, k], [], [])->([i, k]) {i=8, j=2, k=4} need_replication={j}",
    ),
    "gather": (
        "f32[16,32] s32[8,1]",
        "f32[8,32] gather(p0, p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1,32}",
        "([k, j], [i, l])->([i, j]) {i=8, j=32, k=16, l=1} reduction={k} need_replication={l}",
    ),
    "scatter": (
        "f32[16,32] s32[8,1] f32[8,32]",
        "f32[16,32] scatter(p0, p1, p2), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=a",
        "([k, j], [i, l], [i, j])->([k, j]) {i=8, j=32, k=16, l=1} reduction={i} need_replication={l}",
    ),
    "convolution": (
        "f32[2,8,3] f32[3,3,5]",
        "f32[2,8,5] convolution(p0, p1), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
        "([i, j, k], [m, k, l])->([i, j, l]) {i=2, j=8, k=3, l=5, m=1} reduction={k} permutation={j}",
    ),
    "scan": (
        "f32[4,8] f32[8]",
        "(f32[4,8], f32[8]) scan(p0, p1), dimensions={0}, num_carries=1, is_associative=true, to_apply=step",
        "([i, j], [j])->([i, j], [j]) {i=4, j=8} permutation={i}",
    ),
    "scan-that-sums": (
        "f32[4,8] f32[]",
        "(f32[4], f32[]) scan(p0, p1), dimensions={0}, num_carries=1, to_apply=fold",
        "([i, j], [])->([i], []) {i=4, j=1} need_replication={i}",
    ),
    "sort": (
        "f32[4,8]",
        "f32[4,8] sort(p0), dimensions={1}, to_apply=less",
        "([i, j])->([i, j]) {i=4, j=8} need_replication={j}",
    ),
    "fft": (
        "f32[4,8]",
        "c64[4,5] fft(p0), fft_type=RFFT, fft_length={8}",
        "([i, j])->([i, j]) {i=4, j=8} need_replication={j} blocked={j}",
    ),
    "cholesky": ("f32[2,4,4]", "f32[2,4,4] cholesky(p0)", "([i, j, k])->([i, j, k]) {i=2, j=4, k=4} need_replication={j, k}"),
    "qr": (
        "f32[4,3]",
        '(f32[4,3], f32[3]) custom-call(p0), custom_call_target="Qr"',
        "([i, j])->([i, j], [k]) {i=4, j=3, k=3} need_replication={i, j, k}",
    ),
    "rng": (
        "u64[2]",
        "(u64[2], u32[8]) rng-bit-generator(p0), algorithm=rng_three_fry",
        "([i])->([i], [j]) {i=2, j=8} need_replication={i} blocked={i}",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rule_is_that_of_shardy(name: str) -> None:
    parameters, made, expected = CASES[name]
    lines = [f" p{number} = {shape} parameter({number})" for number, shape in enumerate(parameters.split())]
    less = "less { x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT s = pred[] compare(x, y), direction=LT }\n"
    text = f"HloModule m\n{_ADD}{_SCANS}{less}ENTRY e {{\n" + "\n".join(lines) + f"\n ROOT r = {made}\n}}"
    rule = rule_of(hlo_run.parse(text).entry.root)
    assert rule is not None
    assert _text(rule) == expected


def test_unknown_custom_calls_and_maps_have_no_rule() -> None:
    text = 'HloModule m\nENTRY e {\n p = f32[4] parameter(0)\n ROOT r = f32[4] custom-call(p), custom_call_target="mine"\n}'
    assert rule_of(hlo_run.parse(text).entry.root) is None


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("([i])->([i]) {i=8}", "does not fit the arrays"),
        ("([i, j])->([i, j]) {i=8, j=4} sum={j}", "cannot have sum"),
        ("([i, a])->([i, j]) {i=8, j=4}", "'a' are no factors"),
        ("([i, j])->([i, j]) {j=8, i=4}", "not in order"),
        ("[i, j]->[i, j]", "is not a sharding rule"),
    ],
)
def test_a_given_rule_that_does_not_fit_is_refused(rule: str, message: str) -> None:
    attributes = f'frontend_attributes={{xla.sdy.sharding_rule="#sdy.op_sharding_rule<{rule}>"}}'
    call = f'ROOT c = f32[8,4] custom-call(p), custom_call_target="mine", {attributes}'
    module = hlo_run.parse(f"HloModule m\nENTRY e {{\n p = f32[8,4] parameter(0)\n {call}\n}}")
    with pytest.raises(Unsupported, match=message):
        rule_of(module.entry.root)
