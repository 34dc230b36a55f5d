// The sum and the largest element of each block of 256: an operation, and a region that combines two values.
func.func @main(%x: memref<4096xf32>, %sums: memref<16xf32>, %largest: memref<16xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %blocks = arith.constant 16 : index
  %threads = arith.constant 256 : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %blocks, %gy = %c1, %gz = %c1)
             threads(%tx, %ty, %tz) in (%sx = %threads, %sy = %c1, %sz = %c1) {
    %i = gpu.global_id x
    %v = memref.load %x[%i] : memref<4096xf32>
    %sum = gpu.all_reduce add %v uniform {} : (f32) -> f32
    %max = gpu.all_reduce %v uniform {
    ^bb(%lhs: f32, %rhs: f32):
      %m = arith.maximumf %lhs, %rhs : f32
      gpu.yield %m : f32
    } : (f32) -> f32
    %is_first = arith.cmpi eq, %tx, %c0 : index
    scf.if %is_first {
      memref.store %sum, %sums[%bx] : memref<16xf32>
      memref.store %max, %largest[%bx] : memref<16xf32>
    }
    gpu.terminator
  }
  return
}
