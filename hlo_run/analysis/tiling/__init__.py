"""Which emitter takes a fusion, and how its threads divide the work."""
