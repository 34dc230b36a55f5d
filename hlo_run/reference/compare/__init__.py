"""Two results side by side: what differs, how much, and where."""
