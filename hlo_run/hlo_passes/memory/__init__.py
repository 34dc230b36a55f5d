"""Passes about copies, aliases, and slices of large arrays."""
