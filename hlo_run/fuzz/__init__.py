"""Random modules, and what becomes of them: generate by seed, run through the whole pipeline, compare, reduce."""
