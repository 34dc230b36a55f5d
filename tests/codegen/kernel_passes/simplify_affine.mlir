// RUN: --only=simplify-affine --twice
// CHECK: %[[A:.*]] = arith.muli %thread_id_x, %c4 overflow<nsw> : index
// CHECK-NEXT: %[[B:.*]] = arith.muli %block_id_x, %c512 overflow<nsw> : index
// CHECK-NEXT: %[[C:.*]] = arith.addi %[[A]], %[[B]] overflow<nsw> : index
// CHECK-NEXT: return %[[C]]
// CHECK-NOT: apply_indexing
func.func @gelu() -> index {
  %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
  %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(th_x, bl_x) -> (th_x * 4 + bl_x * 512), domain: th_x in [0, 127], bl_x in [0, 24575]">(%thread_id_x, %block_id_x)
  return %0 : index
}
// -----
// RUN: --only=simplify-affine
// Terms defined in the loop come last, before the constant, whatever their order in the map. Equal terms are computed once.
// CHECK: func.func @order(%a: index, %b: index, %init: index)
// CHECK: scf.for %i =
// CHECK-NEXT: %[[A:.*]] = arith.muli %a, %c4
// CHECK-NEXT: %[[I:.*]] = arith.muli %i, %c16
// CHECK-NEXT: %[[S:.*]] = arith.addi %[[A]], %b
// CHECK-NEXT: %[[T:.*]] = arith.addi %[[S]], %[[I]]
// CHECK-NEXT: %[[U:.*]] = arith.addi %[[T]], %c3
// CHECK-NEXT: %[[V:.*]] = arith.addi %[[T]], %c5
// CHECK-NEXT: arith.addi %[[U]], %[[V]]
func.func @order(%a: index, %b: index, %init: index) -> index {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%it = %init) -> (index) {
    %x = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0, d1, d2) -> (d0 * 16 + d1 * 4 + d2 + 3), domain: d0 in [0, 3], d1 in [0, 3], d2 in [0, 2]">(%i, %a, %b)
    %y = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0, d1, d2) -> (d0 * 16 + d1 * 4 + d2 + 5), domain: d0 in [0, 3], d1 in [0, 3], d2 in [0, 2]">(%i, %a, %b)
    %z = arith.addi %x, %y : index
    scf.yield %z : index
  }
  return %r : index
}
// -----
// RUN: --only=simplify-affine
// Divisions of non-negative values are unsigned; only others are signed, with a correction. The map is simplified first.
// CHECK-LABEL: func.func @signs
// CHECK: %[[Q:.*]] = arith.divui %a, %c8 : index
// CHECK-NEXT: %[[R:.*]] = arith.remui %a, %c150 : index
// CHECK-NEXT: %[[M:.*]] = arith.muli %[[R]], %c-1 overflow<nsw> : index
// CHECK-NEXT: %[[N:.*]] = arith.addi %[[M]], %c29 overflow<nsw> : index
// CHECK-NEXT: %[[S:.*]] = arith.remsi %[[N]], %c30 : index
// CHECK-NEXT: %[[T:.*]] = arith.addi %[[S]], %c30 : index
// CHECK-NEXT: %[[C:.*]] = arith.cmpi slt, %[[S]], %c0 : index
// CHECK-NEXT: %[[U:.*]] = arith.select %[[C]], %[[T]], %[[S]] : index
// CHECK-NEXT: return %[[Q]], %[[U]], %a : index, index, index
func.func @signs(%a: index) -> (index, index, index) {
  %0:2 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0 floordiv 8, (-(d0 mod 150) + 29) mod 30), domain: d0 in [0, 1000]">(%a)
  %1 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0 mod 64), domain: d0 in [0, 63]">(%a)
  return %0#0, %0#1, %1 : index, index, index
}
// -----
// RUN: --only=simplify-affine
// A quotient that may be negative; unbounded sums have no nsw.
// CHECK-LABEL: func.func @floor
// CHECK: %[[N:.*]] = arith.cmpi slt, %a, %c0 : index
// CHECK-NEXT: %[[M:.*]] = arith.subi %c-1, %a : index
// CHECK-NEXT: %[[X:.*]] = arith.select %[[N]], %[[M]], %a : index
// CHECK-NEXT: %[[Q:.*]] = arith.divsi %[[X]], %c7 : index
// CHECK-NEXT: %[[P:.*]] = arith.subi %c-1, %[[Q]] : index
// CHECK-NEXT: %[[R:.*]] = arith.select %[[N]], %[[P]], %[[Q]] : index
// CHECK-NEXT: %[[S:.*]] = arith.muli %a, %c3 : index
// CHECK-NEXT: return %[[R]], %[[S]]
func.func @floor(%a: index) -> (index, index) {
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0 floordiv 7), domain: d0 in [-100, 100]">(%a)
  %1 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0 * 3), domain: d0 in [-9223372036854775808, 9223372036854775807]">(%a)
  return %0, %1 : index, index
}
// -----
// RUN: --only=simplify-affine --print_locations
// A constant result; min and max; symbols; new ops keep the HLO instruction of origin.
// CHECK: %c5 = arith.constant 5 : index
// CHECK: %[[A:.*]] = arith.addi %a, %b overflow<nsw> {hlo.op = "slice.3"} : index
// CHECK-NEXT: %[[B:.*]] = arith.minsi %[[A]], %c9 {hlo.op = "slice.3"} : index
// CHECK-NEXT: return %[[B]], %c5
func.func @others(%a: index, %b: index) -> (index, index) {
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0)[s0] -> (min(d0 + s0, 9)), domain: d0 in [0, 10], s0 in [0, 10]">(%a)[%b] {hlo.op = "slice.3"}
  %1 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0 + 5), domain: d0 in [0, 0]">(%a)
  return %0, %1 : index, index
}
