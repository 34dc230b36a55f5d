"""What single opcodes compute, in numpy."""
