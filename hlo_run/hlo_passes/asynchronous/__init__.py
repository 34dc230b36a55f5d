"""Passes that split instructions into a start and a done, so that other work runs between them, and that join them again."""
