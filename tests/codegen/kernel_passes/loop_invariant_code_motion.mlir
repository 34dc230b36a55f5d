// RUN: --only=loop-invariant-code-motion --twice
// An invariant op leaves both loops, with the constant it uses. An op that depends on %i leaves only the inner loop.
// CHECK-LABEL: func.func @nested
// CHECK: %c7 = arith.constant 7
// CHECK: %a = arith.muli %n, %c7
// CHECK: scf.for %i =
// CHECK-NEXT: %b = arith.addi %i, %a
// CHECK-NEXT: scf.for %j =
// CHECK-NEXT: arith.addi %j, %b
func.func @nested(%n: index, %init: index) -> index {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%acc = %init) -> (index) {
    %s = scf.for %j = %c0 to %c4 step %c1 iter_args(%inner = %acc) -> (index) {
      %c7 = arith.constant 7 : index
      %a = arith.muli %n, %c7 : index
      %b = arith.addi %i, %a : index
      %c = arith.addi %j, %b : index
      %d = arith.addi %inner, %c : index
      scf.yield %d : index
    }
    scf.yield %s : index
  }
  return %r : index
}
// -----
// RUN: --only=loop-invariant-code-motion --twice
// A whole scf.if leaves the loop if it reads no elements. With a read it stays, since the index may be out of bounds.
// CHECK-LABEL: func.func @choices
// CHECK: scf.if %p -> (index)
// CHECK: scf.for
// CHECK: scf.if %p -> (f32)
// CHECK-NEXT: tensor.extract %t[%at]
func.func @choices(%p: i1, %t: tensor<8xf32>, %at: index, %init: f32) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = arith.constant 0.0 : f32
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%acc = %init) -> (f32) {
    %k = scf.if %p -> (index) {
      %twice = arith.addi %at, %at : index
      scf.yield %twice : index
    } else {
      scf.yield %at : index
    }
    %x = scf.if %p -> (f32) {
      %e = tensor.extract %t[%at] : tensor<8xf32>
      scf.yield %e : f32
    } else {
      scf.yield %zero : f32
    }
    %m = arith.addi %k, %i : index
    %f = arith.index_castui %m : index to i32
    %g = arith.sitofp %f : i32 to f32
    %y = arith.addf %x, %g : f32
    %s = arith.addf %acc, %y : f32
    scf.yield %s : f32
  }
  return %r : f32
}
// -----
// RUN: --only=loop-invariant-code-motion
// Not hoisted: a division by a number that may be 0, and a barrier.
// CHECK: scf.for
// CHECK-NEXT: arith.divui
// CHECK-NEXT: gpu.barrier
func.func @stay(%n: index, %d: index, %init: index) -> index {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%acc = %init) -> (index) {
    %q = arith.divui %n, %d : index
    gpu.barrier
    %s = arith.addi %acc, %q : index
    scf.yield %s : index
  }
  return %r : index
}
