// RUN: --only=integer-power --twice
// Six rounds of square and multiply; a negative exponent is chosen at the end.
func.func @main(%x: i32, %n: i32) -> i32 {
  // CHECK-NOT: math.ipowi
  // CHECK-COUNT-12: arith.muli
  // CHECK: %[[NEGATIVE:.*]] = arith.cmpi slt, %n, %c0_i32 : i32
  // CHECK: arith.select %[[NEGATIVE]]
  // CHECK-NEXT: return
  %0 = math.ipowi %x, %n : i32
  return %0 : i32
}
