"""Judges each kernel alone while a compiled module runs: its results on the operands that it finds in the run's memory."""
