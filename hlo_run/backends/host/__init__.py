"""The Host platform: run the PTX text of an executable on the CPU."""
