"""The record of priority fusion, `priority_fusion_dump.txt`: XLA's steps and figures for an H100."""

from __future__ import annotations

import re

import hlo_run
from hlo_run.analysis.fusion.fusion_process import process_text
from hlo_run.hlo_passes.fusion.priority_fusion import priority_fusion_steps
from hlo_run.pass_support.fuel import Fuel
from hlo_run.target import preset, to_text_proto

MODULE = """HloModule rec
ENTRY e {
  x = f32[64,32] parameter(0)
  y = f32[64,32] parameter(1)
  s = f32[64,32] multiply(x, y)
  t = f32[64,32] multiply(s, x)
  q = f32[64,32] sqrt(t)
  a = f32[64,32] add(q, s)
  ROOT r = (f32[64,32], f32[64,32]) tuple(t, a)
}
"""
NOT_FUSIBLE = 'reason: "the consumer is not fusible" } }'
# What XLA writes for this module. Between two fusions its order is free.
STEPS = [
    '{ update_priority { producer_name: "s" consumer_names: "t" consumer_names: "a" us_fused: 2.045 us_unfused: 3.0555 } }',
    f'{{ producer_ineligible {{ producer_name: "t" {NOT_FUSIBLE}',
    '{ update_priority { producer_name: "q" consumer_names: "a" us_fused: 1.02175 us_unfused: 2.038 } }',
    f'{{ producer_ineligible {{ producer_name: "a" {NOT_FUSIBLE}',
    '{ fusion { fusion_name: "fusion" producer_name: "q" consumer_name: "a" } }',
    # Only the change: the estimate with the new user, less that with the two kernels that it replaces.
    '{ update_priority { producer_name: "s" consumer_names: "t" consumer_names: "fusion" us_fused: 1.001 us_unfused: 1.00325 } }',
    f'{{ producer_ineligible {{ producer_name: "t" {NOT_FUSIBLE}',
    f'{{ producer_ineligible {{ producer_name: "fusion" {NOT_FUSIBLE}',
    '{ fusion { fusion_name: "fusion.1" producer_name: "s" consumer_name: "t" } }',
    '{ fusion { fusion_name: "fusion" producer_name: "s" consumer_name: "fusion" } }',
    f'{{ producer_ineligible {{ producer_name: "fusion.1" {NOT_FUSIBLE}',
    f'{{ producer_ineligible {{ producer_name: "fusion" {NOT_FUSIBLE}',
]


def record(text: str) -> str:
    """Return the record of a module for an H100."""
    target = preset("h100")
    return process_text(priority_fusion_steps(hlo_run.parse(text), target, Fuel()), target, text)


def steps(text: str) -> list[str]:
    """Return the steps of a record, each in one line."""
    _, *found = re.split("fusion_steps ", record(text).partition("gpu_device_info")[0])
    return [" ".join(step.split()) for step in found]


def test_steps_and_times() -> None:
    assert steps(MODULE) == STEPS


def test_the_device_is_that_of_the_target() -> None:
    device = re.search(r"^gpu_device_info \{\n(?:  .*\n)*\}\n", record(MODULE), re.MULTILINE)
    assert device is not None
    assert to_text_proto(preset("h100")).startswith(device[0])


def test_constants_that_become_code_are_not_recorded() -> None:
    text = "ENTRY e { x = f32[] parameter(0) c = f32[] constant(2) ROOT a = f32[] add(x, c) }"
    assert steps(text) == []


def test_producers_that_no_kernel_can_hold_are_recorded() -> None:
    text = """ENTRY e { x = f32[8,8] parameter(0)
      d = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0} ROOT a = f32[8,8] add(x, d) }"""
    assert steps(text) == ['{ producer_ineligible { producer_name: "d" reason: "the producer is not fusible" } }']


def test_times_have_the_digits_of_f32() -> None:
    text = """ENTRY e { x = f32[4096,4096] parameter(0) n = f32[4096,4096] erf(x) m = f32[4096,4096] tanh(n)
      ROOT l = f32[4096,4096] log(m) }"""
    numbers = re.findall(r"us_(?:un)?fused: (\S+)", record(text))
    assert numbers
    assert all(len(number.replace(".", "")) <= 9 for number in numbers)
