"""The time that instructions and collectives take, and the order that hides the latency of asynchronous ones."""
