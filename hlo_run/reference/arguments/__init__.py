"""Random arguments, within what the module demands of them."""
