"""Arithmetic of PTX instructions in numpy."""
