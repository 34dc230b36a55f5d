<<<<<<< HEAD
"""Block-level fusions, which XLA gives to Triton: what they can contain, their tiles, and their configurations."""
=======
"""Block-level fusions: which part of each array a block computes, how long that takes, and the configuration that says so."""
>>>>>>> rows
