"""Fusion to kernel to PTX."""

# First of all imports below: it says how the dialects are to be imported.
import hlo_run.dialects  # noqa: F401 - imported for its effect
