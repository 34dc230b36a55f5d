"""Translate PTX text into the graph of instructions that both engines run."""
