"""The steps of spmd-partitioning: parts of values, how they change hands between devices, and a handler per opcode."""
