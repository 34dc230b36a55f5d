"""Tools that call the driver to compare dumps, and to find and shrink the cause of a failure."""
