func.func @main(%x: memref<32x256xf32>, %y: memref<32x256xf32>) {
  %c1 = arith.constant 1 : index
  %c32 = arith.constant 32 : index
  %c256 = arith.constant 256 : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %c32, %gy = %c1, %gz = %c1) threads(%tx, %ty, %tz) in (%sx = %c256, %sy = %c1, %sz = %c1) {
    %v = memref.load %x[%bx, %tx] : memref<32x256xf32>
    %m = gpu.all_reduce maximumf %v {} : (f32) -> f32
    %d = arith.subf %v, %m : f32
    %e = math.exp %d : f32
    %s = gpu.all_reduce add %e {} : (f32) -> f32
    %r = arith.divf %e, %s : f32
    memref.store %r, %y[%bx, %tx] : memref<32x256xf32>
    gpu.terminator
  }
  return
}
