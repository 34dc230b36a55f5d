"""Compiles fusions to kernels: xla_gpu IR, LLVM dialect, LLVM IR, PTX."""
