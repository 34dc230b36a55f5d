"""Compare two results: which elements differ, how much, and where."""
