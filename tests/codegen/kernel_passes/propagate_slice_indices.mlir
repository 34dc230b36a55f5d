// RUN: --only=propagate-slice-indices --twice
// CHECK: func.func private @sub(%a: tensor<4xf32> {llvm.align = 16 : i64, xla.invariant, xla.slice_index = 0 : index}, %i: index, %b: tensor<4xf32>) -> f32 {
// CHECK: func.func @main(
// CHECK: func.func private @scalars(%x: f32, %y: f32) -> f32 {
func.func private @sub(%a: tensor<4xf32> {llvm.align = 16 : i64}, %i: index, %b: tensor<4xf32>) -> f32 {
  %0 = tensor.extract %a[%i] : tensor<4xf32>
  return %0 : f32
}
func.func @main(%p: tensor<4xf32> {xla.slice_index = 0 : index, xla.invariant}, %q: tensor<4xf32> {xla.slice_index = 1 : index}, %r: tensor<4xf32> {xla.slice_index = 2 : index}) -> tensor<4xf32> attributes {xla.entry} {
  return %r : tensor<4xf32>
}
func.func private @scalars(%x: f32, %y: f32) -> f32 {
  return %x : f32
}
// -----
// RUN: --only=propagate-slice-indices
// Without an entry function the pass does nothing.
// CHECK: func.func private @sub(%a: tensor<4xf32>) {
func.func @main(%p: tensor<4xf32> {xla.slice_index = 0 : index}) {
  return
}
func.func private @sub(%a: tensor<4xf32>) {
  return
}
