"""Modules made in Python: `HloBuilder`, in the manner of XLA's XlaBuilder."""
