func.func @main(%x: memref<256xi32>, %y: memref<256xi32>) {
  %c1 = arith.constant 1 : index
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %c64 = arith.constant 64 : index
  %tmp = memref.alloc() : memref<256xi32>
  scf.for %it = %c0 to %c4 step %c1 {
    gpu.launch blocks(%bx, %by, %bz) in (%gx = %c4, %gy = %c1, %gz = %c1) threads(%tx, %ty, %tz) in (%sx = %c64, %sy = %c1, %sz = %c1) {
      %i = gpu.global_id x
      %v = memref.load %x[%i] : memref<256xi32>
      %itc = arith.index_cast %it : index to i32
      %w = arith.addi %v, %itc : i32
      memref.store %w, %tmp[%i] : memref<256xi32>
      gpu.terminator
    }
    gpu.launch blocks(%bx, %by, %bz) in (%gx = %c4, %gy = %c1, %gz = %c1) threads(%tx, %ty, %tz) in (%sx = %c64, %sy = %c1, %sz = %c1) {
      %i = gpu.global_id x
      %c255 = arith.constant 255 : index
      %j = arith.subi %c255, %i : index
      %v = memref.load %tmp[%j] : memref<256xi32>
      %o = memref.load %y[%i] : memref<256xi32>
      %w = arith.addi %v, %o : i32
      memref.store %w, %y[%i] : memref<256xi32>
      gpu.terminator
    }
  }
  memref.dealloc %tmp : memref<256xi32>
  return
}
