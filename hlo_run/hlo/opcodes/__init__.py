"""The definitions of HLO's opcodes."""
