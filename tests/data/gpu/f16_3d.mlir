func.func @main(%x: memref<4x6x8xf16>, %y: memref<4x6x8xf16>) {
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %c2, %gy = %c3, %gz = %c2) threads(%tx, %ty, %tz) in (%sx = %c4, %sy = %c2, %sz = %c2) {
    %x0 = arith.muli %bx, %sx : index
    %xi = arith.addi %x0, %tx : index
    %y0 = arith.muli %by, %sy : index
    %yi = arith.addi %y0, %ty : index
    %z0 = arith.muli %bz, %sz : index
    %zi = arith.addi %z0, %tz : index
    %v = memref.load %x[%zi, %yi, %xi] : memref<4x6x8xf16>
    %e = math.exp %v : f16
    %h = arith.constant 5.0e-1 : f16
    %r = arith.mulf %e, %h : f16
    memref.store %r, %y[%zi, %yi, %xi] : memref<4x6x8xf16>
    gpu.terminator
  }
  return
}
