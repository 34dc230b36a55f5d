"""The propagation of shardings by Shardy's rules; `shardy-xla` runs it."""
