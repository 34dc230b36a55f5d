"""The rules of the fusion passes, and records of their decisions."""
