"""Passes about calls, loops and conditionals."""
