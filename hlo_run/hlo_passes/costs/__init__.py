"""Passes that write estimated times into backend_configs, and the model that they share."""
