"""Matrix products as block-level fusions, which XLA gives to Triton: split-k, the growth of the fusions, their tiles."""
