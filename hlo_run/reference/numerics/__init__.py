"""Evaluators of single opcodes, in numpy."""
