"""Fusion to kernel to PTX."""

from hlo_run.dialects.lazy_formats import read_formats_late

# Before any import of a dialect below this folder.
read_formats_late()
