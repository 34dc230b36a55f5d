"""Keeps the command alive when native code dies: a small supervisor, worker processes, and the description of a crash."""
