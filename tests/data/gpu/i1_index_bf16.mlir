func.func @main(%x: memref<96xbf16>, %flag: memref<96xi1>, %pos: memref<96xindex>, %small: memref<96xi8>, %y: memref<96xbf16>) {
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c32 = arith.constant 32 : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %c3, %gy = %c1, %gz = %c1) threads(%tx, %ty, %tz) in (%sx = %c32, %sy = %c1, %sz = %c1) {
    %i = gpu.global_id x
    %f = memref.load %flag[%i] : memref<96xi1>
    %v = memref.load %x[%i] : memref<96xbf16>
    %s = arith.addf %v, %v : bf16
    %r = arith.select %f, %s, %v : bf16
    memref.store %r, %y[%i] : memref<96xbf16>
    %any = gpu.all_reduce or %f {} : (i1) -> i1
    %not = arith.constant true
    %nf = arith.xori %any, %not : i1
    memref.store %nf, %flag[%i] : memref<96xi1>
    %wide = arith.index_cast %i : index to i64
    %tot = gpu.all_reduce add %wide {} : (i64) -> i64
    %total = arith.index_cast %tot : i64 to index
    memref.store %total, %pos[%i] : memref<96xindex>
    %b = memref.load %small[%i] : memref<96xi8>
    %mx = gpu.all_reduce maxsi %b {} : (i8) -> i8
    memref.store %mx, %small[%i] : memref<96xi8>
    gpu.terminator
  }
  return
}
