// RUN: --only=cse --twice
// Equal ops are merged, commutative ops with operands in any order; the HLO instruction of origin does not count.
func.func @equal(%a: i32, %b: i32, %x: f32) -> (i32, i32, f32, i32, i32) {
  // CHECK: %0 = arith.addi %a, %b : i32
  // CHECK-NEXT: %1 = arith.subi %a, %b : i32
  // CHECK-NEXT: %2 = arith.subi %b, %a : i32
  // CHECK-NEXT: %3 = math.exp %x : f32
  // CHECK-NEXT: return %0, %0, %3, %1, %2
  %0 = arith.addi %a, %b {hlo.op = "add.1"} : i32
  %1 = arith.addi %b, %a {hlo.op = "add.2"} : i32
  %2 = arith.subi %a, %b : i32
  %3 = arith.subi %b, %a : i32
  %4 = math.exp %x : f32
  %5 = arith.negf %x : f32
  return %0, %1, %4, %2, %3 : i32, i32, f32, i32, i32
}
// -----
// RUN: --only=cse
// Different in flags, predicate, range or value: not equal.
func.func @different(%a: i32, %x: f32, %i: index) -> (i32, i32, f32, f32, i1, i1, f32, f32, index, index) {
  // CHECK: arith.addi
  // CHECK-NEXT: arith.addi
  // CHECK-NEXT: arith.addf
  // CHECK-NEXT: arith.addf
  // CHECK-NEXT: arith.cmpi
  // CHECK-NEXT: arith.cmpi
  // CHECK-NEXT: arith.constant
  // CHECK-NEXT: arith.constant
  // CHECK-NEXT: index_cast
  // CHECK-NEXT: index_cast
  %0 = arith.addi %a, %a overflow<nsw> : i32
  %1 = arith.addi %a, %a : i32
  %2 = arith.addf %x, %x fastmath<nsz> : f32
  %3 = arith.addf %x, %x : f32
  %4 = arith.cmpi slt, %a, %0 : i32
  %5 = arith.cmpi sle, %a, %0 : i32
  %6 = arith.constant 0.0 : f32
  %7 = arith.constant -0.0 : f32
  %8 = arith.index_cast %a {xla.range = [0 : index, 5 : index]} : i32 to index
  %9 = arith.index_cast %a : i32 to index
  return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9 : i32, i32, f32, f32, i1, i1, f32, f32, index, index
}
// -----
// RUN: --only=cse
// Ops of enclosing blocks are visible, ops of sibling blocks are not.
func.func @scopes(%c: i1, %x: f32, %n: index) -> (f32, f32) {
  // CHECK: math.exp
  // CHECK-NEXT: scf.if
  // CHECK-NEXT: math.sin
  // CHECK-NEXT: arith.addf
  // CHECK: else
  // CHECK-NEXT: math.sin
  // CHECK: }
  // CHECK-NEXT: math.sin
  %e = math.exp %x : f32
  %r = scf.if %c -> (f32) {
    %0 = math.exp %x : f32
    %1 = math.sin %x : f32
    %2 = arith.addf %0, %1 : f32
    scf.yield %2 : f32
  } else {
    %1 = math.sin %x : f32
    scf.yield %1 : f32
  }
  %s = math.sin %x : f32
  %t = arith.addf %s, %e : f32
  return %r, %t : f32, f32
}
// -----
// RUN: --only=cse
// Pure calls are merged; tiles of shared memory, barriers, atomics and other ops with effects are not.
func.func @effects(%t: tensor<4xf32>, %i: index, %x: f32) -> (f32, f32, tensor<4xf32>, tensor<4xf32>) {
  // CHECK: %pure_call = xla_gpu.pure_call @f(%x)
  // CHECK-NEXT: xla_gpu.allocate_shared
  // CHECK-NEXT: xla_gpu.allocate_shared
  // CHECK-NEXT: xla_gpu.sync_threads
  // CHECK-NEXT: xla_gpu.sync_threads
  // CHECK-NEXT: call @f(%x)
  // CHECK-NEXT: call @f(%x)
  // CHECK-NEXT: return %pure_call, %pure_call
  %0 = xla_gpu.pure_call @f(%x) : (f32) -> f32
  %1 = xla_gpu.pure_call @f(%x) : (f32) -> f32
  %2 = xla_gpu.allocate_shared : tensor<4xf32>
  %3 = xla_gpu.allocate_shared : tensor<4xf32>
  %4 = xla_gpu.sync_threads %2 : tensor<4xf32>
  %5 = xla_gpu.sync_threads %2 : tensor<4xf32>
  %6 = func.call @f(%x) : (f32) -> f32
  %7 = func.call @f(%x) : (f32) -> f32
  return %0, %1, %4, %3 : f32, f32, tensor<4xf32>, tensor<4xf32>
}
func.func private @f(%x: f32) -> f32 {
  return %x : f32
}
