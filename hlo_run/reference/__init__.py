"""The numpy reference: it evaluates HLO graphs, makes fake arguments, and compares results as XLA does."""
