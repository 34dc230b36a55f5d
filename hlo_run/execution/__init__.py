"""The run of one file: arguments, iterations, comparison with the expected result, reports."""
