"""Passes over all-gathers."""
