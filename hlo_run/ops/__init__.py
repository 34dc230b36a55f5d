"""Shape rules and index maps of HLO opcodes, and the verifier."""
