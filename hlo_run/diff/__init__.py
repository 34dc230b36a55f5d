"""Compares two compilations: modules by their graphs, texts by their lines, and the figures of kernels and memory."""
