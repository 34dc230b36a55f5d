"""Passes about sorts and top-k: expansion, simplification, and CUB's calls with the size of their scratch memory."""
