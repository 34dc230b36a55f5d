"""Expanders of gathers, scatters and dynamic indices."""
