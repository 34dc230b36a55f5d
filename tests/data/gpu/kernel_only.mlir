gpu.module @m {
  gpu.func @iota(%out: memref<?xi32>, %by: i32) kernel {
    %i = gpu.global_id x
    %v = arith.index_cast %i : index to i32
    %w = arith.muli %v, %by : i32
    memref.store %w, %out[%i] : memref<?xi32>
    gpu.return
  }
}
