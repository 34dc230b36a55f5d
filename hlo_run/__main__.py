"""Runs the command line as `python -m hlo_run`."""

from hlo_run.cli import main

if __name__ == "__main__":
    main()
