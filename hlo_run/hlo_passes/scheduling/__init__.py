"""Passes about the order of instructions: the schedule, what it must keep, and the latency-hiding scheduler."""
