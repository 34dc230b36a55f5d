"""Passes about copies, aliases and the schedule."""
