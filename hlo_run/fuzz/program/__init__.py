"""A random module under construction: its computations, its values, and helpers that add instructions."""
