"""Build modules in Python with `HloBuilder`, which is like XLA's XlaBuilder."""
