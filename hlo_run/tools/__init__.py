"""The subcommands of `hlo-tool`, one per file. `tool.py` lists them."""
