"""How the dimensions of operands and results belong together, which decides how shardings move between them."""
