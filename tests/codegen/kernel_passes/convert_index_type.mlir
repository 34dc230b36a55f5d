// RUN: --only=convert-index-type --twice
// The offset never becomes an index again, since only a cast to i32 used it.
// CHECK: %thread_id_x = gpu.thread_id  x
// CHECK-NEXT: %[[T:.*]] = arith.index_cast %thread_id_x : index to i32
// CHECK-NEXT: %block_id_x = gpu.block_id  x
// CHECK-NEXT: %[[B:.*]] = arith.index_cast %block_id_x : index to i32
// CHECK-NEXT: %[[P:.*]] = arith.muli %[[T]], %c4_i32 : i32
// CHECK-NEXT: %[[Q:.*]] = arith.muli %[[B]], %c512_i32 : i32
// CHECK-NEXT: %[[R:.*]] = arith.addi %[[P]], %[[Q]] : i32
// CHECK-NEXT: return %[[R]] : i32
module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
  func.func @gelu() -> i32 {
    %c4 = arith.constant 4 : index
    %c512 = arith.constant 512 : index
    %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
    %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}
    %0 = arith.muli %thread_id_x, %c4 overflow<nsw> : index
    %1 = arith.muli %block_id_x, %c512 overflow<nsw> : index
    %2 = arith.addi %0, %1 overflow<nsw> : index
    %3 = arith.index_castui %2 : index to i32
    return %3 : i32
  }
}
// -----
// RUN: --only=convert-index-type --twice
// The width is 64 bits if the module says so. Other users take an index through a cast: a compare, a loop bound, i32.
// CHECK: scf.for %i =
// CHECK-NEXT: %[[I:.*]] = arith.index_cast %i : index to i64
// CHECK-NEXT: %[[A:.*]] = arith.addi %[[I]], %{{.*}} : i64
// CHECK-NEXT: %[[B:.*]] = arith.index_cast %[[A]] : i64 to index
// CHECK-NEXT: arith.cmpi slt, %[[B]], %n : index
// CHECK-NEXT: arith.index_castui %[[B]] : index to i32
module attributes {dlti.dl_spec = #dlti.dl_spec<index = 64 : i32>} {
  func.func @others(%n: index, %init: i32) -> i32 {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %r = scf.for %i = %c0 to %n step %c1 iter_args(%it = %init) -> (i32) {
      %0 = arith.addi %i, %n : index
      %1 = arith.cmpi slt, %0, %n : index
      %2 = arith.index_castui %0 : index to i32
      %3 = arith.select %1, %2, %it : i32
      scf.yield %3 : i32
    }
    return %r : i32
  }
}
// -----
// RUN: --only=convert-index-type --twice
// An index cast from an i32 is that i32; divisions keep their signedness. Arithmetic of i32 does not change.
// CHECK: func.func @casts
// CHECK: %[[A:.*]] = arith.addi %x, %y overflow<nsw> : i32
// CHECK-NEXT: %[[B:.*]] = arith.divsi %[[A]], %c3_i32 : i32
// CHECK-NEXT: %[[C:.*]] = arith.remui %[[B]], %c3_i32 : i32
// CHECK-NEXT: return %[[C]]
module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
  func.func @casts(%x: i32, %y: i32) -> i32 {
    %c3 = arith.constant 3 : index
    %0 = arith.addi %x, %y overflow<nsw> : i32
    %1 = arith.index_cast %0 : i32 to index
    %2 = arith.divsi %1, %c3 : index
    %3 = arith.remui %2, %c3 : index
    %4 = arith.index_cast %3 : index to i32
    return %4 : i32
  }
}
