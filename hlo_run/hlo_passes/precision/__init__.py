"""Passes about element types: narrower and wider arithmetic, and the conversions around it."""
