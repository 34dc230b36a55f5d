"""Passes that let collectives and other work run beside computation, and order the instructions for it."""
