"""The JIT engine: a kernel's PTX as LLVM IR for this machine's processor, compiled and run as native code."""
