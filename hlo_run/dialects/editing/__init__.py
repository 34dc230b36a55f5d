"""Helpers that build, fold and replace operations."""
