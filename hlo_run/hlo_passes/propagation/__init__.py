"""The steps of sharding-propagation: annotations, and shardings taken from operands, users and called computations."""
