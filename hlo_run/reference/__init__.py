"""The oracle: HLO graph + numpy arrays → numpy arrays, fake arguments, and XLA's comparison of results."""
