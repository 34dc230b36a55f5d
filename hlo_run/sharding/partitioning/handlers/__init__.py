"""How each kind of instruction is divided between partitions."""
