"""How long things take on a device, by XLA's model."""
