"""Passes about conditionals, and their steps."""
