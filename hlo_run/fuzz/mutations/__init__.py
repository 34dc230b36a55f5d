"""Mutations of modules: small random edits after which a module is still valid."""
