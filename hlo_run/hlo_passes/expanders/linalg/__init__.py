"""Expanders of linear algebra."""
