"""Passes about convolutions: other forms of them, and cuDNN's calls."""
