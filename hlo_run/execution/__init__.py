"""The run of one file: arguments, platform, iterations, what came out."""
