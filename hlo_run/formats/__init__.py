"""The one adapter to real XLA (jaxlib): other formats than HLO text, and JAX functions. Everything here is optional."""
