"""The families of steps that a random module is made of; `hlo_run.fuzz.table` has their weights."""
