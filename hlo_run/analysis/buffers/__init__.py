"""Analyses of which values share memory, and when they are live."""
