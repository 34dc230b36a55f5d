"""An interpreter of kernel IR after every row, which tells which row breaks a kernel. It shares no code with the lowerings."""

from hlo_run.dialects.late_definitions import complete_late

# Before any import of a dialect below this folder.
complete_late()
