"""Finds the first thunk whose result differs from the reference: a replay of the run beside the reference."""
