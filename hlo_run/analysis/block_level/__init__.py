"""Block-level fusions, which XLA gives to Triton: what they can contain, their tiles, and their configurations."""
