"""Elementary functions of f64 and c128 arrays, made of exactly rounded operations: the same bits on every machine."""
