"""The modes of the command line, one per file. `dispatch` runs the mode of every input file."""
