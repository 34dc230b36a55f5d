"""Steps of cublas-gemm-rewriter: the calls of cuBLASLt, and the epilogues that they absorb."""
