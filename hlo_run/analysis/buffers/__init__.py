"""Which values share memory, and when they live."""
