"""The numpy emulator: all threads of a launch in lockstep, with checks."""
