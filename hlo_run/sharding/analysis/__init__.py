"""The relation between the dimensions of operands and results, which decides how shardings move between them."""
