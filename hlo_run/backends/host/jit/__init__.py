"""The JIT engine: translate a kernel's PTX to LLVM IR for the host processor, compile it and run it as native code."""
