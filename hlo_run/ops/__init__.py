"""What an HLO opcode is: its shape rule and its index maps."""
