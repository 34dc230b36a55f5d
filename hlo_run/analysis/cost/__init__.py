"""Estimates of run times on a GPU, by XLA's cost model."""
