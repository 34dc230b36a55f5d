"""The rewritten regions of an HLO row: cut out before and after the row, and compared on separate operands."""
