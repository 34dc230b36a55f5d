"""The HLO graph: modules, their printer and their edits."""
