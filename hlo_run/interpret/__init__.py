"""An interpreter of kernel IR after every row, which tells which row breaks a kernel. It shares no code with the lowerings."""
