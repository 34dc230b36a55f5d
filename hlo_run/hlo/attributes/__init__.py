"""The text of attributes, both ways: one table keyed by attribute name, and the lexer under it."""
