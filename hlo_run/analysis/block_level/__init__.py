"""Block-level fusions: which part of each array a block computes, how long that takes, and the configuration that says so."""
