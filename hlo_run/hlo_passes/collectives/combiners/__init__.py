"""Passes that join several collectives into one."""
