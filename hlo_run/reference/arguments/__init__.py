"""Random arguments that satisfy the constraints of the module."""
