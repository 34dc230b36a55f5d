"""Fusion to kernel to PTX."""

from hlo_run.dialects.late_definitions import complete_late

# Before any import of a dialect below this folder.
complete_late()
