"""Passes about arrays whose sizes are known at run time: padding, and the arithmetic of sizes."""
