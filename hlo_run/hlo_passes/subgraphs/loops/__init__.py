"""Helpers of the passes that edit loops."""
