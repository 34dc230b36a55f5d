func.func @main(%x: memref<64x64xf32>) {
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  %sub = memref.subview %x[16, 8] [32, 32] [1, 1] : memref<64x64xf32> to memref<32x32xf32, strided<[64, 1], offset: 1032>>
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %c32, %gy = %c1, %gz = %c1) threads(%tx, %ty, %tz) in (%sx = %c32, %sy = %c1, %sz = %c1) {
    %v = memref.load %sub[%bx, %tx] : memref<32x32xf32, strided<[64, 1], offset: 1032>>
    %n = arith.negf %v : f32
    memref.store %n, %sub[%bx, %tx] : memref<32x32xf32, strided<[64, 1], offset: 1032>>
    gpu.terminator
  }
  return
}
