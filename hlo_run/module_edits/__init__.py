"""Edits that make a module smaller. Each returns False if it does not apply; the verifier judges the result."""
