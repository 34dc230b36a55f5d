"""Keeps the command alive when native code dies: a small supervisor, worker processes, and what is known about a crash."""
