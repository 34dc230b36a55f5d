"""Passes that inline, make, mark or share calls, and their steps."""
