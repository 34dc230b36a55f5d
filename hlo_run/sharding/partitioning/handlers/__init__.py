"""The functions that divide each kind of instruction between partitions."""
