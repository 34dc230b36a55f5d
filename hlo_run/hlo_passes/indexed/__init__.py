"""Passes about gathers and scatters, and about slices at dynamic indices."""
