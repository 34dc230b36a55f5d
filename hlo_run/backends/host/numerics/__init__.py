"""The arithmetic of PTX instructions in numpy."""
