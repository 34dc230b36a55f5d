"""Expanders of random numbers, and the counter that the device keeps."""
