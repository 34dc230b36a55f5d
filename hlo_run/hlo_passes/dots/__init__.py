"""Passes about matrix products; `gemm` has the calls of cuBLASLt."""
