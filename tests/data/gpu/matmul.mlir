func.func @main(%m: index, %n: index, %k: index, %a: memref<?x?xf32>, %b: memref<?x?xf32>, %c: memref<?x?xf32>) {
  %c1 = arith.constant 1 : index
  %c0 = arith.constant 0 : index
  %t = arith.constant 16 : index
  %gx = arith.ceildivui %n, %t : index
  %gy = arith.ceildivui %m, %t : index
  %zero = arith.constant 0.0 : f32
  gpu.launch blocks(%bx, %by, %bz) in (%ax = %gx, %ay = %gy, %az = %c1)
             threads(%tx, %ty, %tz) in (%sx = %t, %sy = %t, %sz = %c1)
             workgroup(%ta: memref<16x16xf32, 3>, %tb: memref<16x16xf32, 3>) {
    %row = gpu.global_id y
    %col = gpu.global_id x
    %acc = scf.for %k0 = %c0 to %k step %t iter_args(%s = %zero) -> (f32) {
      %ka = arith.addi %k0, %tx : index
      %kb = arith.addi %k0, %ty : index
      %av = memref.load %a[%row, %ka] : memref<?x?xf32>
      %bv = memref.load %b[%kb, %col] : memref<?x?xf32>
      memref.store %av, %ta[%ty, %tx] : memref<16x16xf32, 3>
      memref.store %bv, %tb[%ty, %tx] : memref<16x16xf32, 3>
      gpu.barrier
      %part = scf.for %i = %c0 to %t step %c1 iter_args(%q = %s) -> (f32) {
        %x = memref.load %ta[%ty, %i] : memref<16x16xf32, 3>
        %y = memref.load %tb[%i, %tx] : memref<16x16xf32, 3>
        %p = arith.mulf %x, %y : f32
        %z = arith.addf %q, %p : f32
        scf.yield %z : f32
      }
      gpu.barrier
      scf.yield %part : f32
    }
    memref.store %acc, %c[%row, %col] : memref<?x?xf32>
    gpu.terminator
  }
  return
}
