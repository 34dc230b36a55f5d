"""Library thunks by numpy: for Host, and for CUDA where no device library takes a thunk."""
