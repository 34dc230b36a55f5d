"""Helpers of the passes over collectives: groups, channels, shards of a device, and the combination of several collectives."""
