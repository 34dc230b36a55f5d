// RUN: --only=canonicalize --twice
// Constants are folded, and each is once at the start of the function.
func.func @constants(%x: index, %n: i32, %b: i1) -> (index, i32, i32, i1, i32, index, i8) {
  // CHECK-LABEL: func.func @constants
  // CHECK-DAG: %c7 = arith.constant 7 : index
  // CHECK-DAG: %c-3_i32 = arith.constant -3 : i32
  // CHECK-DAG: %c1_i32 = arith.constant 1 : i32
  // CHECK-DAG: %true = arith.constant true
  // CHECK-DAG: %c-56_i8 = arith.constant -56 : i8
  // CHECK: %[[S:.*]] = arith.addi %x, %c7 : index
  // CHECK-NEXT: return %[[S]], %c-3_i32, %c1_i32, %true, %n, %[[S]], %c-56_i8
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %s = arith.addi %c3, %c4 : index
  %r = arith.addi %s, %x : index
  %c7_i32 = arith.constant 7 : i32
  %m2 = arith.constant -2 : i32
  %q = arith.divsi %c7_i32, %m2 : i32
  %m = arith.remsi %c7_i32, %m2 : i32
  %lt = arith.cmpi ult, %c7_i32, %m2 : i32
  %zero = arith.constant 0 : i32
  %n0 = arith.addi %n, %zero : i32
  %n1 = arith.select %b, %n0, %n0 : i32
  %i8a = arith.constant 100 : i8
  %i8b = arith.addi %i8a, %i8a : i8
  %cast = arith.index_castui %s : index to i32
  %cast2 = arith.index_castui %cast : i32 to index
  %r2 = arith.addi %s, %x : index
  return %r, %q, %m, %lt, %n1, %r, %i8b : index, i32, i32, i1, i32, index, i8
}
// -----
// RUN: --only=canonicalize
// Not folded: division by zero, a shift by the width or more, float arithmetic that rounds, a select on a variable.
func.func @stays(%x: f32, %c: i1) -> (i32, i32, f32, f32) {
  // CHECK: arith.divsi
  // CHECK-NEXT: arith.shli
  // CHECK-NEXT: arith.addf
  // CHECK-NEXT: arith.select
  %one = arith.constant 1 : i32
  %zero = arith.constant 0 : i32
  %far = arith.constant 32 : i32
  %f0 = arith.constant 0.0 : f32
  %0 = arith.divsi %one, %zero : i32
  %1 = arith.shli %one, %far : i32
  %2 = arith.addf %x, %f0 : f32
  %3 = arith.select %c, %x, %f0 : f32
  return %0, %1, %2, %3 : i32, i32, f32, f32
}
// -----
// RUN: --only=canonicalize
// 0.0 and -0.0 are two constants; only -0.0 is neutral in an addition.
func.func @zeros(%x: f32) -> (f32, f32) {
  // CHECK: %[[Z:.*]] = arith.constant 0.000000e+00 : f32
  // CHECK-NEXT: %[[A:.*]] = arith.addf %x, %[[Z]] : f32
  // CHECK-NEXT: return %[[A]], %x
  %p = arith.constant 0.0 : f32
  %m = arith.constant -0.0 : f32
  %0 = arith.addf %x, %p : f32
  %1 = arith.addf %x, %m : f32
  return %0, %1 : f32, f32
}
// -----
// RUN: --only=canonicalize --twice
// Symbols become dims, unused variables are dropped, constants are folded into the map.
// CHECK: #map = #xla_gpu.indexing_map<"(a, s) -> (a * 4 + s + 6), domain: a in [0, 9], s in [0, 3]">
func.func @operands(%a: index, %b: index, %s: index) -> index {
  // CHECK: xla_gpu.apply_indexing #map(%a, %s)
  %c2 = arith.constant 2 : index
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a, b, c)[s] -> (a * 4 + s + c * 3), domain: a in [0, 9], b in [0, 9], c in [0, 4], s in [0, 3]">(%a, %b, %c2)[%s]
  return %0 : index
}
// -----
// RUN: --only=canonicalize --twice
// An unused result, a constant result, and a result that is an operand.
// CHECK: #map = #xla_gpu.indexing_map<"(a) -> (a * 2), domain: a in [0, 9]">
func.func @results(%a: index, %b: index) -> (index, index, index) {
  // CHECK: %c5 = arith.constant 5 : index
  // CHECK-NEXT: %[[R:.*]] = xla_gpu.apply_indexing #map(%a)
  // CHECK-NEXT: return %c5, %b, %[[R]]
  %0:4 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a, b) -> (a + b, 5, b, a * 2), domain: a in [0, 9], b in [0, 9]">(%a, %b)
  return %0#1, %0#2, %0#3 : index, index, index
}
// -----
// RUN: --only=canonicalize
// A map of a map is folded to one map; a value that occurs twice becomes one dim.
// CHECK: #map = #xla_gpu.indexing_map<"(a, b) -> (a * 3 + b * 2), domain: a in [0, 9], b in [0, 9]">
func.func @sequence(%a: index, %b: index) -> index {
  // CHECK: %[[R:.*]] = xla_gpu.apply_indexing #map(%a, %b)
  // CHECK-NEXT: return %[[R]]
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a, b) -> (a + b * 2), domain: a in [0, 9], b in [0, 9]">(%a, %b)
  %1 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(x, a) -> (x + a * 2), domain: x in [0, 27], a in [0, 9]">(%0, %a)
  return %1 : index
}
// -----
// RUN: --only=canonicalize
// A map with other users is folded only if the folded map is simpler.
func.func @shared(%a: index) -> (index, index, index) {
  // CHECK: %[[P:.*]] = xla_gpu.apply_indexing #map(%a)
  // CHECK-NEXT: %[[Q:.*]] = xla_gpu.apply_indexing #map1(%[[P]])
  // CHECK-NEXT: return %[[P]], %[[Q]], %a
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a) -> (a mod 7), domain: a in [0, 90]">(%a)
  %1 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a) -> (a floordiv 3), domain: a in [0, 6]">(%0)
  %2 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a) -> (a * 2), domain: a in [0, 9]">(%a)
  %3 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a) -> (a floordiv 2), domain: a in [0, 18]">(%2)
  return %0, %1, %3 : index, index, index
}
// -----
// RUN: --only=canonicalize
// A constant dim is folded into a loop's map, with its constraints.
// CHECK: #map = #xla_gpu.indexing_map<"(b)[s] -> (b + s), domain: b in [0, 9], s in [0, 3], (s + 1) mod 2 in [0, 0]">
func.func @loop_dims(%b: index, %t: tensor<40xf32>, %x: f32) -> tensor<40xf32> {
  // CHECK: xla_gpu.loop (%b)[%s] -> (%ra) in #map
  %c3 = arith.constant 3 : index
  %0 = xla_gpu.loop (%c3, %b)[%s] -> (%ra) in #xla_gpu.indexing_map<"(a, b)[s] -> (b + s), domain: a in [0, 9], b in [0, 9], s in [0, 3], (a + s) mod 2 in [0, 0]"> iter_args(%iter = %t) -> (tensor<40xf32>) {
    %1 = tensor.insert %x into %iter[%ra] : tensor<40xf32>
    xla_gpu.yield %1 : tensor<40xf32>
  }
  return %0 : tensor<40xf32>
}
// -----
// RUN: --only=canonicalize
// An indexing map is folded into a loop. The interval of the folded dim stays as a constraint.
// CHECK: #map = #xla_gpu.indexing_map<"(a)[s] -> (a * 2 + s), domain: a in [0, 3], s in [0, 3]">
func.func @loop_producer(%a: index, %t: tensor<40xf32>, %x: f32) -> tensor<40xf32> {
  // CHECK: xla_gpu.loop (%a)[%s] -> (%ra) in #map
  %d = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a) -> (a * 2), domain: a in [0, 9]">(%a)
  %0 = xla_gpu.loop (%d)[%s] -> (%ra) in #xla_gpu.indexing_map<"(a)[s] -> (a + s), domain: a in [0, 7], s in [0, 3]"> iter_args(%iter = %t) -> (tensor<40xf32>) {
    %1 = tensor.insert %x into %iter[%ra] : tensor<40xf32>
    xla_gpu.yield %1 : tensor<40xf32>
  }
  return %0 : tensor<40xf32>
}
// -----
// RUN: --only=canonicalize
// The loop keeps a dim whose constant is outside of its interval (an empty loop), and a dim of unknown range.
func.func @loop_outside(%a: index, %t: tensor<40xf32>, %x: f32) -> tensor<40xf32> {
  // CHECK: xla_gpu.loop (%c12, %a)[%s] -> (%ra)
  %c12 = arith.constant 12 : index
  %0 = xla_gpu.loop (%c12, %a)[%s] -> (%ra) in #xla_gpu.indexing_map<"(a, b)[s] -> (s), domain: a in [0, 7], b in [0, 3], s in [0, 3]"> iter_args(%iter = %t) -> (tensor<40xf32>) {
    %1 = tensor.insert %x into %iter[%ra] : tensor<40xf32>
    xla_gpu.yield %1 : tensor<40xf32>
  }
  return %0 : tensor<40xf32>
}
// -----
// RUN: --only=canonicalize --twice
// scf.if with constant conditions, and loops of zero or one step.
func.func @control(%x: f32, %t: tensor<4xf32>) -> (f32, tensor<4xf32>, tensor<4xf32>) {
  // CHECK-LABEL: func.func @control
  // CHECK-NOT: scf
  // CHECK: %[[N:.*]] = arith.negf %x
  // CHECK-NEXT: %[[I:.*]] = tensor.insert %[[N]] into %t[%c2]
  // CHECK-NEXT: return %[[N]], %[[I]], %t
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c = arith.cmpi slt, %c0, %c3 : index
  %r = scf.if %c -> (f32) {
    %1 = arith.negf %x : f32
    scf.yield %1 : f32
  } else {
    scf.yield %x : f32
  }
  %one = scf.for %i = %c2 to %c3 step %c1 iter_args(%iter = %t) -> (tensor<4xf32>) {
    %2 = tensor.insert %r into %iter[%i] : tensor<4xf32>
    scf.yield %2 : tensor<4xf32>
  }
  %none = scf.for %i = %c3 to %c3 step %c1 iter_args(%iter = %t) -> (tensor<4xf32>) {
    %2 = tensor.insert %r into %iter[%i] : tensor<4xf32>
    scf.yield %2 : tensor<4xf32>
  }
  return %r, %one, %none : f32, tensor<4xf32>, tensor<4xf32>
}
// -----
// RUN: --only=canonicalize --twice
// Unused and invariant results of scf.if and loops are removed.
func.func @idle(%c: i1, %n: index, %x: f32, %t: tensor<4xf32>) -> (f32, f32, tensor<4xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  // CHECK: %[[L:.*]]:2 = scf.for %{{.*}} = %c0 to %n step %c1 iter_args(%{{.*}} = %x, %{{.*}} = %t) -> (f32, tensor<4xf32>) {
  %l:4 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %x, %same = %x, %idle = %n, %b = %t) -> (f32, f32, index, tensor<4xf32>) {
    %0 = arith.addf %a, %same : f32
    %1 = tensor.insert %same into %b[%i] : tensor<4xf32>
    scf.yield %0, %same, %n, %1 : f32, f32, index, tensor<4xf32>
  }
  // CHECK: %[[I:.*]] = scf.if %c -> (tensor<4xf32>) {
  %r:3 = scf.if %c -> (f32, tensor<4xf32>, f32) {
    %0 = tensor.insert %x into %l#3[%c0] : tensor<4xf32>
    scf.yield %x, %0, %l#0 : f32, tensor<4xf32>, f32
  } else {
    scf.yield %x, %l#3, %x : f32, tensor<4xf32>, f32
  }
  // CHECK: return %[[L]]#0, %x, %[[I]]
  return %l#0, %r#0, %r#1 : f32, f32, tensor<4xf32>
}
// -----
// RUN: --only=canonicalize
// An scf.if that yields scalars from outside becomes a select; one that yields tensors stays.
func.func @select(%c: i1, %x: f32, %y: f32, %t: tensor<4xf32>, %u: tensor<4xf32>) -> (f32, tensor<4xf32>) {
  // CHECK: arith.select %c, %x, %y : f32
  %r = scf.if %c -> (f32) {
    scf.yield %x : f32
  } else {
    scf.yield %y : f32
  }
  // CHECK: scf.if %c -> (tensor<4xf32>)
  %s = scf.if %c -> (tensor<4xf32>) {
    scf.yield %t : tensor<4xf32>
  } else {
    scf.yield %u : tensor<4xf32>
  }
  return %r, %s : f32, tensor<4xf32>
}
// -----
// RUN: --only=canonicalize
// An extract takes the inserted value. Inserts at other constant positions are skipped, inserts at unknown positions are not.
func.func @vectors(%v: vector<4xf32>, %x: f32, %i: index) -> (f32, f32, f32, f32) {
  // CHECK: %[[V:.*]] = vector.insert %x, %v [%c1]
  // CHECK-NEXT: %[[E:.*]] = vector.extract %[[V]][%c2]
  // CHECK: %[[W:.*]] = vector.insert %x, %v [%i]
  // CHECK: %[[F:.*]] = vector.extract %[[W]][%c2]
  // CHECK: return %x, %[[E]], %x, %[[F]]
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %w = vector.insert %x, %v [%c1] : f32 into vector<4xf32>
  %0 = vector.extract %w[%c1] : f32 from vector<4xf32>
  %1 = vector.extract %w[%c2] : f32 from vector<4xf32>
  %w2 = vector.insert %x, %v [%i] : f32 into vector<4xf32>
  %2 = vector.extract %w2[%i] : f32 from vector<4xf32>
  %3 = vector.extract %w2[%c2] : f32 from vector<4xf32>
  return %0, %1, %2, %3 : f32, f32, f32, f32
}
// -----
// RUN: --only=canonicalize
// Dead ops are erased, ops with effects stay.
func.func @dead(%t: tensor<4xf32>, %i: index) -> tensor<4xf32> {
  // CHECK-NOT: tensor.extract
  // CHECK-NOT: pure_call
  // CHECK: xla_gpu.allocate_shared
  // CHECK-NEXT: xla_gpu.sync_threads
  // CHECK-NOT: atomic_rmw
  // CHECK: return %t
  %0 = tensor.extract %t[%i] : tensor<4xf32>
  %1 = xla_gpu.pure_call @f(%0) : (f32) -> f32
  %2 = math.exp %1 : f32
  %3 = xla_gpu.allocate_shared : tensor<4xf32>
  %4 = xla_gpu.sync_threads %3 : tensor<4xf32>
  %5 = xla_gpu.atomic_rmw %t[%i] : tensor<4xf32> {
  ^bb0(%current: f32):
    xla_gpu.yield %current : f32
  }
  return %5 : tensor<4xf32>
}
func.func private @f(%x: f32) -> f32 {
  return %x : f32
}
