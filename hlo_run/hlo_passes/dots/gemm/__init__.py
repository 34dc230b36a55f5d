"""The rewrite of matrix products to calls of cuBLASLt, its steps, and the passes before and after it."""
