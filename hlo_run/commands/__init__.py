"""The modes of the command line, one per file; `dispatch` gives every input file to its mode."""
