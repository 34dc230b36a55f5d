"""The adapter to real XLA (jaxlib): other formats than HLO text, JAX functions, XLA:GPU's compiler. It is optional."""
