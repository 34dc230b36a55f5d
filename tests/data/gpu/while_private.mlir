// collatz steps, with a private counter
func.func @main(%out: memref<128xi64>) {
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c64 = arith.constant 64 : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %c2, %gy = %c1, %gz = %c1) threads(%tx, %ty, %tz) in (%sx = %c64, %sy = %c1, %sz = %c1) private(%count: memref<1xi64, 5>) {
    %i = gpu.global_id x
    %c0 = arith.constant 0 : index
    %z = arith.constant 0 : i64
    %one = arith.constant 1 : i64
    %two = arith.constant 2 : i64
    %three = arith.constant 3 : i64
    memref.store %z, %count[%c0] : memref<1xi64, 5>
    %i64 = arith.index_cast %i : index to i64
    %start = arith.addi %i64, %one : i64
    %r = scf.while (%n = %start) : (i64) -> i64 {
      %go = arith.cmpi ne, %n, %one : i64
      scf.condition(%go) %n : i64
    } do {
    ^bb0(%n: i64):
      %odd = arith.remsi %n, %two : i64
      %is = arith.cmpi eq, %odd, %one : i64
      %next = scf.if %is -> (i64) {
        %a = arith.muli %n, %three : i64
        %b = arith.addi %a, %one : i64
        scf.yield %b : i64
      } else {
        %h = arith.divsi %n, %two : i64
        scf.yield %h : i64
      }
      %old = memref.load %count[%c0] : memref<1xi64, 5>
      %new = arith.addi %old, %one : i64
      memref.store %new, %count[%c0] : memref<1xi64, 5>
      scf.yield %next : i64
    }
    %f = memref.load %count[%c0] : memref<1xi64, 5>
    memref.store %f, %out[%i] : memref<128xi64>
    gpu.terminator
  }
  return
}
