"""What the rewriters of matrix products share: the calls of cuBLASLt, and what goes into them."""
