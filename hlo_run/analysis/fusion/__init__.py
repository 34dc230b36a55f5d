"""What may be fused, and what was."""
