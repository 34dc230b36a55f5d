"""Differential fuzzing: generate random modules from seeds, run them through the pipeline, compare, and reduce failures."""
