"""Chooses the emitter of a fusion and distributes its work over threads."""
