"""The steps of conditional-code-motion: find what may cross the border of a conditional, weigh it, and move it."""
