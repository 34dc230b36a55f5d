// RUN: --only=symbol-dce --twice
// @b is kept by @a, which the kernel calls; @c and @d only keep each other.
// CHECK: func.func @main
// CHECK: func.func private @a
// CHECK: func.func private @b
// CHECK-NOT: @c
// CHECK-NOT: @d
func.func @main(%x: f32) -> f32 {
  %r = func.call @a(%x) : (f32) -> f32
  return %r : f32
}
func.func private @c(%x: f32) -> f32 {
  %r = func.call @d(%x) : (f32) -> f32
  return %r : f32
}
func.func private @a(%x: f32) -> f32 {
  %r = xla_gpu.pure_call @b(%x) : (f32) -> f32
  return %r : f32
}
func.func private @d(%x: f32) -> f32 {
  %r = func.call @c(%x) : (f32) -> f32
  return %r : f32
}
func.func private @b(%x: f32) -> f32 {
  return %x : f32
}
// -----
// RUN: --only=symbol-dce
// Not erased: a public function without calls, and a private function that is a combiner.
// CHECK: func.func @spare
// CHECK: func.func private @add
func.func @spare(%x: f32) -> f32 {
  %r = xla_gpu.shuffle_reduce(%x) to 16 combiner=@add : f32
  return %r : f32
}
func.func private @add(%x: f32, %y: f32) -> f32 {
  %r = arith.addf %x, %y : f32
  return %r : f32
}
// -----
// RUN: --only=symbol-dce
// Private globals are erased if no op takes their address.
// CHECK-NOT: @shared_1
// CHECK: @shared_0
// CHECK-NOT: @shared_1
// CHECK: func.func @main
llvm.mlir.global private @shared_1() {addr_space = 3 : i32} : !llvm.array<4 x f32>
llvm.mlir.global private @shared_0() {addr_space = 3 : i32} : !llvm.array<4 x f32>
func.func @main() {
  %p = llvm.mlir.addressof @shared_0 : !llvm.ptr<3>
  return
}
