"""The Host platform: runs the PTX text of an executable on the CPU."""
