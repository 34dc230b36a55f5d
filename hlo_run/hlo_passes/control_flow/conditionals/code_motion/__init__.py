"""Conditional-code-motion and its steps: which instructions move into branches, and which move out."""
