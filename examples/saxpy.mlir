// y = a * x + y, one thread an element; the last block has threads without one.
func.func @main(%n: index, %a: f32, %x: memref<?xf32>, %y: memref<?xf32>) {
  %c1 = arith.constant 1 : index
  %threads = arith.constant 128 : index
  %blocks = arith.ceildivui %n, %threads : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %blocks, %gy = %c1, %gz = %c1)
             threads(%tx, %ty, %tz) in (%sx = %threads, %sy = %c1, %sz = %c1) {
    %first = arith.muli %bx, %sx : index
    %i = arith.addi %first, %tx : index
    %is_inside = arith.cmpi ult, %i, %n : index
    scf.if %is_inside {
      %xi = memref.load %x[%i] : memref<?xf32>
      %yi = memref.load %y[%i] : memref<?xf32>
      %ax = arith.mulf %a, %xi : f32
      %new = arith.addf %ax, %yi : f32
      memref.store %new, %y[%i] : memref<?xf32>
    }
    gpu.terminator
  }
  return
}
