"""HLO text to graph."""
