"""A random module as it grows: its scope, its values, the making of single instructions."""
