func.func @main(%x: memref<?xi32>, %h: memref<16xi32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = memref.dim %x, %c0 : memref<?xi32>
  %t = arith.constant 64 : index
  %g = arith.ceildivui %n, %t : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %g, %gy = %c1, %gz = %c1) threads(%tx, %ty, %tz) in (%sx = %t, %sy = %c1, %sz = %c1) workgroup(%bins: memref<16xi32, 3>) {
    %c16 = arith.constant 16 : index
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %is = arith.cmpi ult, %tx, %c16 : index
    scf.if %is { memref.store %zero, %bins[%tx] : memref<16xi32, 3> }
    gpu.barrier
    %i = gpu.global_id x
    %in = arith.cmpi ult, %i, %n : index
    scf.if %in {
      %v = memref.load %x[%i] : memref<?xi32>
      %mask = arith.constant 15 : i32
      %b = arith.andi %v, %mask : i32
      %bi = arith.index_cast %b : i32 to index
      %old = memref.atomic_rmw addi %one, %bins[%bi] : (i32, memref<16xi32, 3>) -> i32
    }
    gpu.barrier
    scf.if %is {
      %s = memref.load %bins[%tx] : memref<16xi32, 3>
      %o = memref.atomic_rmw addi %s, %h[%tx] : (i32, memref<16xi32>) -> i32
    }
    gpu.terminator
  }
  return
}
