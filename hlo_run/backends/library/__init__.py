"""Library work on whole arrays by numpy: what Host does, and CUDA where there is no library of its own."""
