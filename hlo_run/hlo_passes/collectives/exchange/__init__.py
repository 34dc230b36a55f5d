"""Passes over exchanges between devices: ragged-all-to-alls and collective-permutes."""
