"""Faults in the PTX of kernels, for scripts/mutation_score.py: what they are, and what a run makes of them."""
