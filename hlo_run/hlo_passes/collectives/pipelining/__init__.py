"""Passes that run collectives of a loop in another iteration, beside its other work."""
