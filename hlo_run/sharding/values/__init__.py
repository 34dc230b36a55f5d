"""The algebra of shardings: make them, move their dimensions, compare, merge and group them."""
