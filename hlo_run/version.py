"""The version of hlo-run, and the release of XLA that it mirrors."""

VERSION = "0.1.0"
# Of jaxlib and jax-cuda13-pjrt.
XLA_RELEASE = "0.12.0.1"
