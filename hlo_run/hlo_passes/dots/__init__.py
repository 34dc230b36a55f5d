"""Passes about dots."""
