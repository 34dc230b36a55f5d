"""The numpy emulator: run all threads of a launch in lockstep, with checks."""
