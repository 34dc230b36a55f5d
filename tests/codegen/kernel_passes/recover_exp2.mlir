// RUN: --only=recover-exp2 --twice
// log 2 as f32, as bf16 widened to f32, as f64, and the f32 above it.
func.func @main(%x: f32, %d: f64) -> (f32, f32, f64, f32) {
  // CHECK-NOT: arith.mulf
  // CHECK: %0 = math.exp2 %x : f32
  // CHECK: %1 = math.exp2 %x : f32
  // CHECK: %2 = math.exp2 %d : f64
  // CHECK: %3 = math.exp2 %x : f32
  %l32 = arith.constant 0.693147182 : f32
  %l16 = arith.constant 0.69140625 : f32
  %l64 = arith.constant 0.69314718055994531 : f64
  %above = arith.constant 0.693147242 : f32
  %a = arith.mulf %x, %l32 : f32
  %b = arith.mulf %x, %l16 : f32
  %c = arith.mulf %d, %l64 : f64
  %e = arith.mulf %x, %above : f32
  %0 = math.exp %a : f32
  %1 = math.exp %b : f32
  %2 = math.exp %c : f64
  %3 = math.exp %e : f32
  return %0, %1, %2, %3 : f32, f32, f64, f32
}
// -----
// RUN: --only=recover-exp2
// Not: another constant, the constant as the first operand, and a product with another user stays for it.
// CHECK: math.exp %{{.*}} : f32
// CHECK: math.exp %{{.*}} : f32
// CHECK: %[[PRODUCT:.*]] = arith.mulf
// CHECK: math.exp2 %x : f32
// CHECK: arith.addf %{{.*}}, %[[PRODUCT]]
func.func @main(%x: f32) -> (f32, f32, f32) {
  %seven = arith.constant 0.7 : f32
  %l = arith.constant 0.693147182 : f32
  %a = arith.mulf %x, %seven : f32
  %b = arith.mulf %l, %x : f32
  %0 = math.exp %a : f32
  %1 = math.exp %b : f32
  %c = arith.mulf %x, %l : f32
  %2 = math.exp %c : f32
  %3 = arith.addf %2, %c : f32
  return %0, %1, %3 : f32, f32, f32
}
