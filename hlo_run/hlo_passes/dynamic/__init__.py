"""Steps of dynamic_padder: the sizes of dynamic dimensions, and how opcodes change them."""
