"""Passes about while loops, and their steps."""
