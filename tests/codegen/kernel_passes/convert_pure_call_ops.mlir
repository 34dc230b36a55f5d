// RUN: --only=convert-pure-call-ops --twice --print_locations
// Attributes are kept; two equal calls stay two calls.
// CHECK: %a = call @f(%t, %i) {hlo.op = "add.1"} : (tensor<8xf32>, index) -> f32
// CHECK-NEXT: %b = call @f(%t, %i) : (tensor<8xf32>, index) -> f32
// CHECK-NEXT: arith.addf %a, %b
// CHECK-NOT: pure_call
func.func @main(%t: tensor<8xf32>, %i: index) -> f32 {
  %a = xla_gpu.pure_call @f(%t, %i) {hlo.op = "add.1"} : (tensor<8xf32>, index) -> f32
  %b = xla_gpu.pure_call @f(%t, %i) : (tensor<8xf32>, index) -> f32
  %c = arith.addf %a, %b : f32
  return %c : f32
}
func.func private @f(%t: tensor<8xf32>, %i: index) -> f32 {
  %x = tensor.extract %t[%i] : tensor<8xf32>
  return %x : f32
}
// -----
// RUN: --only=convert-pure-call-ops
// Calls in nested regions too; several results keep their order. An ordinary call stays as it is.
// CHECK: scf.if
// CHECK-NEXT: %a:2 = func.call @pair(%x) : (f32) -> (f32, f32)
// CHECK-NEXT: scf.yield %a#1 : f32
// CHECK: func.call @pair(%x) {xla.is_reduction} : (f32) -> (f32, f32)
func.func @main(%p: i1, %x: f32) -> f32 {
  %r = scf.if %p -> (f32) {
    %a:2 = xla_gpu.pure_call @pair(%x) : (f32) -> (f32, f32)
    scf.yield %a#1 : f32
  } else {
    %b:2 = func.call @pair(%x) {xla.is_reduction} : (f32) -> (f32, f32)
    scf.yield %b#0 : f32
  }
  return %r : f32
}
func.func private @pair(%x: f32) -> (f32, f32) {
  return %x, %x : f32, f32
}
