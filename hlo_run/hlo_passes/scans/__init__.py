"""Passes about scans: loops, windows and CUB's calls."""
