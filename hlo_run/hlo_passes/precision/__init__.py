"""The steps of bfloat16-propagation: which values meet where, what instructions take, and which become narrower."""
