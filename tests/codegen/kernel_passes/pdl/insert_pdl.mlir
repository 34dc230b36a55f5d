// RUN: --only=insert-pdl --twice
// Public functions are kernels. The wait is the first op.
// CHECK: func.func @kernel
// CHECK-NEXT: xla_gpu.pdl_wait
// CHECK-NEXT: call
// CHECK: func.func private @helper
// CHECK-NOT: xla_gpu.pdl_wait
func.func @kernel(%x: f32) -> f32 {
  %r = func.call @helper(%x) : (f32) -> f32
  return %r : f32
}
func.func private @helper(%x: f32) -> f32 {
  return %x : f32
}
func.func private @declared(f32) -> f32
