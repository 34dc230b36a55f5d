"""Verify modules beyond the rules of single instructions."""
