// RUN: --only=simplify-arith --twice
// Comparisons that ranges decide, and the scf.if that depends on them.
func.func @decided(%i: index {xla.range = [0 : index, 9 : index]}, %j: index {xla.range = [10 : index, 20 : index]}, %x: f32, %y: f32) -> (f32, i1, i1, i1) {
  // CHECK-NOT: scf.if
  // CHECK: arith.cmpi slt, %j, %c15
  // CHECK: return %x, %true{{.*}}, %false{{.*}}, %{{[0-9]+}}
  %c0 = arith.constant 0 : index
  %c15 = arith.constant 15 : index
  %0 = arith.cmpi sge, %i, %c0 : index
  %1 = arith.cmpi slt, %i, %j : index
  %2 = arith.andi %0, %1 : i1
  %3 = scf.if %2 -> (f32) {
    scf.yield %x : f32
  } else {
    scf.yield %y : f32
  }
  %4 = arith.cmpi ult, %i, %j : index
  %5 = arith.cmpi eq, %i, %j : index
  %6 = arith.cmpi slt, %j, %c15 : index
  return %3, %4, %5, %6 : f32, i1, i1, i1
}
// -----
// RUN: --only=simplify-arith
// An unsigned comparison is not decided by a range that may be negative.
func.func @unsigned(%i: index {xla.range = [-5 : index, 9 : index]}, %n: i32) -> (i1, i1) {
  // CHECK: arith.cmpi ult, %i, %c10
  // CHECK-NEXT: arith.cmpi slt, %n, %c5_i32
  %c10 = arith.constant 10 : index
  %c5 = arith.constant 5 : i32
  %0 = arith.cmpi ult, %i, %c10 : index
  %1 = arith.cmpi slt, %n, %c5 : i32
  return %0, %1 : i1, i1
}
// -----
// RUN: --only=simplify-arith --twice
// Ranges of sums, products, minima, maxima, casts; clamps without effect are removed.
func.func @ranges(%i: index {xla.range = [2 : index, 9 : index]}, %n: index) -> (index, index, i32, index, index, index) {
  %c3 = arith.constant 3 : index
  %c20 = arith.constant 20 : index
  // CHECK: %[[S:.*]] = arith.addi %i, %c3 {xla.range = [5 : index, 12 : index]} : index
  // CHECK-NEXT: %[[P:.*]] = arith.muli %[[S]], %c3 {xla.range = [15 : index, 36 : index]} : index
  // CHECK-NEXT: arith.index_cast %[[P]] {xla.range = [15 : index, 36 : index]} : index to i32
  // CHECK-NEXT: %[[M:.*]] = arith.maxsi %n, %c3 {xla.range = [3 : index, 9223372036854775807 : index]} : index
  // CHECK-NEXT: %[[N:.*]] = arith.minsi %[[M]], %c20 {xla.range = [3 : index, 20 : index]} : index
  // CHECK-NEXT: return %[[S]], %[[P]], %{{.*}}, %[[N]], %[[S]], %c20
  %0 = arith.addi %i, %c3 : index
  %1 = arith.muli %0, %c3 : index
  %2 = arith.index_cast %1 : index to i32
  %3 = arith.maxsi %n, %c3 : index
  %4 = arith.minsi %3, %c20 : index
  %5 = arith.minsi %0, %c20 : index
  %6 = arith.maxsi %5, %c20 : index
  return %0, %1, %2, %4, %5, %6 : index, index, i32, index, index, index
}
// -----
// RUN: --only=simplify-arith
// A 32-bit sum may wrap, so it has no range, and the comparison stays.
func.func @wraps(%n: i32) -> i1 {
  // CHECK: arith.maxsi %n, %c0_i32 {xla.range = [0 : index, 2147483647 : index]} : i32
  // CHECK-NEXT: arith.addi %{{.*}}, %c5_i32 : i32
  // CHECK-NEXT: arith.cmpi sge
  %c0 = arith.constant 0 : i32
  %c5 = arith.constant 5 : i32
  %0 = arith.maxsi %n, %c0 : i32
  %1 = arith.addi %0, %c5 : i32
  %2 = arith.cmpi sge, %1, %c0 : i32
  return %2 : i1
}
// -----
// RUN: --only=simplify-arith
// The absolute value of a value with a range.
func.func @absolute(%i: index {xla.range = [-7 : index, 3 : index]}) -> index {
  // CHECK: arith.select {{.*}} {xla.range = [0 : index, 7 : index]} : index
  %c0 = arith.constant 0 : index
  %0 = arith.cmpi sge, %i, %c0 : index
  %1 = arith.subi %c0, %i : index
  %2 = arith.select %0, %i, %1 : index
  return %2 : index
}
// -----
// RUN: --only=simplify-arith
// The range of a loop variable is tighter than its interval in the map, so the mod is removed.
// CHECK: #map = #xla_gpu.indexing_map<"(a) -> (a * 2), domain: a in [0, 3]">
func.func @refine(%t: tensor<80xf32>, %x: f32) -> tensor<80xf32> {
  // CHECK: apply_indexing #map(%i)
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%iter = %t) -> (tensor<80xf32>) {
    %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(a) -> ((a mod 4) * 2), domain: a in [0, 99]">(%i)
    %1 = tensor.insert %x into %iter[%0] : tensor<80xf32>
    scf.yield %1 : tensor<80xf32>
  }
  return %r : tensor<80xf32>
}
// -----
// RUN: --only=simplify-arith
// Predicates: and of truncations, a truncation before a shuffle; atan2(x, 1).
func.func @others(%a: i32, %b: i32, %offset: i32, %x: f32) -> (i8, i32, f32, f32) {
  // CHECK: %[[W:.*]] = arith.andi %a, %b : i32
  // CHECK-NEXT: %[[T:.*]] = arith.trunci %[[W]] : i32 to i8
  // CHECK: %shuffleResult, %valid = gpu.shuffle down %a, %offset, %offset : i32
  // CHECK-NEXT: %[[N:.*]] = arith.trunci %shuffleResult : i32 to i8
  // CHECK-NEXT: %[[E:.*]] = arith.extui %[[N]] : i8 to i32
  // CHECK-NEXT: %[[A:.*]] = math.atan %x : f32
  // CHECK-NEXT: %[[B:.*]] = math.atan2 %x, %x : f32
  // CHECK-NEXT: return %[[T]], %[[E]], %[[A]], %[[B]]
  %one = arith.constant 1.0 : f32
  %0 = arith.trunci %a : i32 to i8
  %1 = arith.trunci %b : i32 to i8
  %2 = arith.andi %0, %1 : i8
  %3 = arith.extui %0 : i8 to i32
  %4, %5 = gpu.shuffle down %3, %offset, %offset : i32
  %6 = math.atan2 %x, %one : f32
  %7 = math.atan2 %x, %x : f32
  return %2, %4, %6, %7 : i8, i32, f32, f32
}
