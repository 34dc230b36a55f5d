module attributes {gpu.container_module} {
  gpu.module @kernels {
    gpu.func @transpose(%in: memref<64x96xf32>, %out: memref<96x64xf32>) workgroup(%tile: memref<16x17xf32, #gpu.address_space<workgroup>>) kernel {
      %bx = gpu.block_id x
      %by = gpu.block_id y
      %tx = gpu.thread_id x
      %ty = gpu.thread_id y
      %c16 = arith.constant 16 : index
      %r0 = arith.muli %by, %c16 : index
      %r = arith.addi %r0, %ty : index
      %c0 = arith.muli %bx, %c16 : index
      %c = arith.addi %c0, %tx : index
      %v = memref.load %in[%r, %c] : memref<64x96xf32>
      memref.store %v, %tile[%ty, %tx] : memref<16x17xf32, #gpu.address_space<workgroup>>
      gpu.barrier
      %w = memref.load %tile[%tx, %ty] : memref<16x17xf32, #gpu.address_space<workgroup>>
      %or = arith.addi %c0, %ty : index
      %oc = arith.addi %r0, %tx : index
      memref.store %w, %out[%or, %oc] : memref<96x64xf32>
      gpu.return
    }
  }
  func.func @main(%in: memref<64x96xf32>, %out: memref<96x64xf32>) {
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c6 = arith.constant 6 : index
    %c16 = arith.constant 16 : index
    gpu.launch_func @kernels::@transpose blocks in (%c6, %c4, %c1) threads in (%c16, %c16, %c1) args(%in : memref<64x96xf32>, %out : memref<96x64xf32>)
    return
  }
}
