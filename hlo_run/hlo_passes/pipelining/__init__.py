"""Steps of the passes that move collectives of a loop into the iteration before, into the next one, or behind the loop."""
