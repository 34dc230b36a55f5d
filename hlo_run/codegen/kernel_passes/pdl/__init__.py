"""Passes of programmatic dependent launches: a kernel waits for the kernels before it."""
