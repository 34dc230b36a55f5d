"""Elementary functions with the same bits on every machine: of numpy arrays of f64 and c128, built of exactly rounded operations."""
