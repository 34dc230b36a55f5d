"""Passes about calls, conditionals and loops."""
