"""Graph and arrays to arrays: control flow, devices, calls."""
