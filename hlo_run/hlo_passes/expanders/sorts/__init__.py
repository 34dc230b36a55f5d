"""Expanders of sorts and top-k."""
