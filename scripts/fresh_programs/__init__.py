"""Training steps and inference programs in JAX, for scripts/record_fresh_programs.py: functions with types of their arguments."""
