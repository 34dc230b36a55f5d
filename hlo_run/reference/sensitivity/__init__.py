"""Measures which kernels of a module can change what a comparison compares."""
