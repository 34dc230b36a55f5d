"""Parse and print attributes: one table by attribute name, and the lexer."""
