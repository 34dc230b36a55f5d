"""PTX text to the graph of instructions that both engines run."""
