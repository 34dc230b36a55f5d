"""Fusion to kernel to PTX."""
