"""Parse HLO text."""
