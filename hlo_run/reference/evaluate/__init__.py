"""Evaluate a module on arrays: control flow, calls, collectives, simulated devices."""
