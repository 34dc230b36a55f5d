// RUN: --only=unswitch-loops --twice
// The else branch passes its buffer on, so it needs no loop.
// CHECK-LABEL: func.func @guarded
// CHECK: %[[R:[a-z0-9_]+]] = scf.if %inside -> (tensor<8xf32>) {
// CHECK-NEXT: %[[L:[a-z0-9_]+]] = scf.for %vector_index = %c0 to %c4 step %c1 iter_args(%iter = %out) -> (tensor<8xf32>) {
// CHECK-NEXT: %inserted = tensor.insert %cst into %iter[%vector_index]
// CHECK-NEXT: scf.yield %inserted
// CHECK-NEXT: }
// CHECK-NEXT: scf.yield %[[L]] : tensor<8xf32>
// CHECK-NEXT: } else {
// CHECK-NEXT: scf.yield %out : tensor<8xf32>
// CHECK-NEXT: }
// CHECK-NEXT: return %[[R]]
func.func @guarded(%out: tensor<8xf32>, %inside: i1) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %x = arith.constant 1.0 : f32
  %r = scf.for %vector_index = %c0 to %c4 step %c1 iter_args(%iter = %out) -> (tensor<8xf32>) {
    %s = scf.if %inside -> (tensor<8xf32>) {
      %inserted = tensor.insert %x into %iter[%vector_index] : tensor<8xf32>
      scf.yield %inserted : tensor<8xf32>
    } else {
      scf.yield %iter : tensor<8xf32>
    }
    scf.yield %s : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}
// -----
// RUN: --only=unswitch-loops --twice
// Two nested loops and two nested scf.if: both conditions move out of both loops, and both branches get loops.
// CHECK-LABEL: func.func @nest
// CHECK: scf.if %p -> (f32) {
// CHECK-NEXT: scf.if %q -> (f32) {
// CHECK-NEXT: scf.for
// CHECK-NEXT: scf.for
// CHECK-NEXT: arith.addf
// CHECK: } else {
// CHECK-NEXT: scf.for
// CHECK-NEXT: scf.for
// CHECK-NEXT: arith.mulf
// CHECK: } else {
// CHECK-NEXT: scf.yield %init : f32
func.func @nest(%init: f32, %p: i1, %q: i1) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %x = arith.constant 1.5 : f32
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %init) -> (f32) {
    %s = scf.for %j = %c0 to %c4 step %c1 iter_args(%b = %a) -> (f32) {
      %t = scf.if %p -> (f32) {
        %u = scf.if %q -> (f32) {
          %v = arith.addf %b, %x : f32
          scf.yield %v : f32
        } else {
          %v = arith.mulf %b, %x : f32
          scf.yield %v : f32
        }
        scf.yield %u : f32
      } else {
        scf.yield %b : f32
      }
      scf.yield %t : f32
    }
    scf.yield %s : f32
  }
  return %r : f32
}
// -----
// RUN: --only=unswitch-loops
// Iteration values outside of the scf.if stay in both loops. The condition is an iteration value: not unswitched.
// CHECK: scf.for
// CHECK-NEXT: scf.if
func.func @own_condition(%init: f32, %p: i1) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r:2 = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %init, %again = %p) -> (f32, i1) {
    %t = scf.if %again -> (f32) {
      %v = arith.addf %a, %init : f32
      scf.yield %v : f32
    } else {
      scf.yield %a : f32
    }
    scf.yield %t, %again : f32, i1
  }
  return %r#0 : f32
}
// -----
// RUN: --only=unswitch-loops
// Not unswitched: an op beside the scf.if, and a constant condition (which canonicalize folds).
// CHECK-LABEL: func.func @not_alone
// CHECK: scf.for
// CHECK-NEXT: math.exp
// CHECK-NEXT: scf.if
// CHECK: scf.for
// CHECK-NEXT: scf.if %true
func.func @not_alone(%init: f32, %p: i1) -> (f32, f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %true = arith.constant true
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %init) -> (f32) {
    %e = math.exp %a : f32
    %t = scf.if %p -> (f32) {
      scf.yield %e : f32
    } else {
      scf.yield %a : f32
    }
    scf.yield %t : f32
  }
  %s = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %init) -> (f32) {
    %t = scf.if %true -> (f32) {
      %e = math.exp %a : f32
      scf.yield %e : f32
    } else {
      scf.yield %a : f32
    }
    scf.yield %t : f32
  }
  return %r, %s : f32, f32
}
