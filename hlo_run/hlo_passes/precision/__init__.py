"""The steps of bfloat16-propagation: the values that meet, the operands of instructions, and the values that become narrower."""
