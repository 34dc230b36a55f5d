// RUN: --only=merge-pointers-to-same-slice --twice
// The kernel keeps its arguments and uses the first of a slice. The duplicate is removed from the other function and its call.
// CHECK: func.func @main(%a: !llvm.ptr {llvm.align = 16 : index, llvm.noalias}, %b: !llvm.ptr {llvm.noalias, xla.invariant}, %c: !llvm.ptr {llvm.noalias}) attributes {xla.entry} {
// CHECK: call @sub(%a, %b, %c1) : (!llvm.ptr, !llvm.ptr, index) -> f32
// CHECK-NEXT: llvm.store %{{.*}}, %a
// CHECK: func.func private @sub(%a: !llvm.ptr {llvm.noalias}, %b: !llvm.ptr {llvm.noalias, xla.invariant}, %i: index {xla.range = [0 : index, 7 : index]}) -> f32
// CHECK-NEXT: llvm.load %a
// CHECK-NOT: slice_index
func.func @main(%a: !llvm.ptr {llvm.align = 16 : index, xla.slice_index = 0 : index}, %b: !llvm.ptr {xla.invariant, xla.slice_index = 1 : index}, %c: !llvm.ptr {xla.slice_index = 0 : index}) attributes {xla.entry} {
  %c1 = arith.constant 1 : index
  %x = func.call @sub(%a, %b, %c, %c1) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, index) -> f32
  llvm.store %x, %c : f32, !llvm.ptr
  return
}
func.func private @sub(%a: !llvm.ptr {xla.slice_index = 0 : index}, %b: !llvm.ptr {xla.invariant, xla.slice_index = 1 : index}, %c: !llvm.ptr {xla.slice_index = 0 : index}, %i: index {xla.range = [0 : index, 7 : index]}) -> f32 {
  %x = llvm.load %c : !llvm.ptr -> f32
  return %x : f32
}
// -----
// RUN: --only=merge-pointers-to-same-slice
// Different slices are not merged; a pointer with `xla.not_invariant` does not become noalias.
// CHECK: func.func private @f(%a: !llvm.ptr {llvm.noalias}, %b: !llvm.ptr {xla.not_invariant}, %x: f32) {
// CHECK-NEXT: llvm.store %x, %b
func.func private @f(%a: !llvm.ptr {xla.slice_index = 0 : index}, %b: !llvm.ptr {xla.not_invariant, xla.slice_index = 1 : index}, %x: f32) {
  llvm.store %x, %b : f32, !llvm.ptr
  return
}
