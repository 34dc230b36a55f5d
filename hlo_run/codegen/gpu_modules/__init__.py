"""Modules of the gpu dialect: the program of the host with fixed sizes, its launches, and the kernel of each launch."""
