"""The step families of random modules; `hlo_run.fuzz.table` has their weights."""
