"""Passes over all-reduces and reduce-scatters."""
