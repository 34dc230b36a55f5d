"""Expanders of decompositions and triangular solves."""
