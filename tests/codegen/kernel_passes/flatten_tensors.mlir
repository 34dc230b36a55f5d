// RUN: --only=flatten-tensors --twice
// The indices' maps and the shape's linear index become one map over dims. Load and store share it; the old maps are erased.
// CHECK: #map = #xla_gpu.indexing_map<"(th_x, bl_x, vector_index) -> (th_x * 4 + bl_x * 512 + vector_index), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
// CHECK: func.func @main(%input: tensor<12582912xbf16>, %output: tensor<12582912xbf16>, %vector_index: index) -> tensor<12582912xbf16> {
// CHECK-NEXT: %thread_id_x
// CHECK-NEXT: %block_id_x
// CHECK-NEXT: %0 = xla_gpu.apply_indexing #map(%thread_id_x, %block_id_x, %vector_index)
// CHECK-NEXT: %x = tensor.extract %input[%0] : tensor<12582912xbf16>
// CHECK-NEXT: %y = tensor.insert %x into %output[%0] : tensor<12582912xbf16>
// CHECK-NEXT: return
#map = #xla_gpu.indexing_map<"(th_x, bl_x)[vector_index] -> (bl_x floordiv 4096, (bl_x floordiv 8) mod 512, (bl_x mod 8) * 512 + th_x * 4 + vector_index), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
func.func @main(%input: tensor<6x512x4096xbf16>, %output: tensor<6x512x4096xbf16>, %vector_index: index) -> tensor<6x512x4096xbf16> {
  %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
  %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}
  %dim:3 = xla_gpu.apply_indexing #map(%thread_id_x, %block_id_x)[%vector_index]
  %x = tensor.extract %input[%dim#0, %dim#1, %dim#2] : tensor<6x512x4096xbf16>
  %y = tensor.insert %x into %output[%dim#0, %dim#1, %dim#2] : tensor<6x512x4096xbf16>
  return %y : tensor<6x512x4096xbf16>
}
// -----
// RUN: --only=flatten-tensors --twice
// Layouts decide the strides; constant indices are folded in; sizes of 1 need no index. Rank 0 and 1 stay as they are.
// CHECK: #map = #xla_gpu.indexing_map<"(d0, d1) -> (d1 * 8 + d0), domain: d0 in [0, 7], d1 in [0, 15]">
// CHECK: #map1 = #xla_gpu.indexing_map<"(d0) -> (d0 * 16 + 3), domain: d0 in [0, 7]">
// CHECK: func.func @layouts(%a: tensor<128xf32>, %b: tensor<128xf32>, %c: tensor<16xf32>, %d: tensor<f32>, %e: tensor<16xf32>,
// CHECK-NEXT: %c3 = arith.constant 3
// CHECK-NEXT: %[[A:.*]] = xla_gpu.apply_indexing #map(%i, %j)
// CHECK-NEXT: tensor.extract %a[%[[A]]] : tensor<128xf32>
// CHECK-NEXT: %[[B:.*]] = xla_gpu.apply_indexing #map1(%i)
// CHECK-NEXT: tensor.extract %b[%[[B]]] : tensor<128xf32>
// CHECK-NEXT: tensor.extract %c[%j] : tensor<16xf32>
// CHECK-NEXT: tensor.extract %d[] : tensor<f32>
// CHECK-NEXT: tensor.extract %e[%j] : tensor<16xf32>
func.func @layouts(%a: tensor<8x16xf32, dense<[0, 1]> : tensor<2xi64>>, %b: tensor<8x16xf32>, %c: tensor<1x16x1xf32>, %d: tensor<f32>, %e: tensor<16xf32>, %i: index, %j: index) -> (f32, f32, f32, f32, f32) {
  %c3 = arith.constant 3 : index
  %v = tensor.extract %a[%i, %j] : tensor<8x16xf32, dense<[0, 1]> : tensor<2xi64>>
  %w = tensor.extract %b[%i, %c3] : tensor<8x16xf32>
  %x = tensor.extract %c[%i, %j, %i] : tensor<1x16x1xf32>
  %y = tensor.extract %d[] : tensor<f32>
  %z = tensor.extract %e[%j] : tensor<16xf32>
  return %v, %w, %x, %y, %z : f32, f32, f32, f32, f32
}
// -----
// RUN: --only=flatten-tensors --twice
// Constants in the order they have in memory, by row and by column.
// CHECK: arith.constant dense<[1, 2, 3, 4, 5, 6]> : tensor<6xi32>
// CHECK: arith.constant dense<[1, 4, 2, 5, 3, 6]> : tensor<6xi32>
// CHECK: arith.constant dense<7> : tensor<6xi32>
func.func @constants(%i: index, %j: index) -> (i32, i32, i32) {
  %a = arith.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>
  %b = arith.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32, dense<[0, 1]> : tensor<2xi64>>
  %c = arith.constant dense<7> : tensor<2x3xi32>
  %x = tensor.extract %a[%i, %j] : tensor<2x3xi32>
  %y = tensor.extract %b[%i, %j] : tensor<2x3xi32, dense<[0, 1]> : tensor<2xi64>>
  %z = tensor.extract %c[%i, %j] : tensor<2x3xi32>
  return %x, %y, %z : i32, i32, i32
}
// -----
// RUN: --only=flatten-tensors --twice
// The types of loops, scf.if, calls, shared tiles, barriers and atomics change too. A padded tile keeps its padding.
// CHECK: func.func @main(%t: tensor<1024xf32>, %i: index, %p: i1) -> tensor<1024xf32> {
// CHECK: %tile = xla_gpu.allocate_shared : tensor<1056xf32>
// CHECK: xla_gpu.pure_call @f(%t, %i) : (tensor<1024xf32>, index) -> f32
// CHECK: scf.for %j = %c0 to %c4 step %c1 iter_args(%it = %tile) -> (tensor<1056xf32>)
// CHECK: scf.if %p -> (tensor<1056xf32>)
// CHECK: xla_gpu.sync_threads %{{.*}} : tensor<1056xf32>
// CHECK: xla_gpu.atomic_rmw %t[%{{[a-z0-9_]+}}] : tensor<1024xf32>
// CHECK: func.func private @f(%t: tensor<1024xf32>, %i: index) -> f32
func.func @main(%t: tensor<32x32xf32>, %i: index, %p: i1) -> tensor<32x32xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %tile = xla_gpu.allocate_shared : tensor<32x1x33xf32>
  %x = xla_gpu.pure_call @f(%t, %i) : (tensor<32x32xf32>, index) -> f32
  %filled = scf.for %j = %c0 to %c4 step %c1 iter_args(%it = %tile) -> (tensor<32x1x33xf32>) {
    %s = scf.if %p -> (tensor<32x1x33xf32>) {
      %u = tensor.insert %x into %it[%j, %c0, %i] : tensor<32x1x33xf32>
      scf.yield %u : tensor<32x1x33xf32>
    } else {
      scf.yield %it : tensor<32x1x33xf32>
    }
    scf.yield %s : tensor<32x1x33xf32>
  }
  %synced = xla_gpu.sync_threads %filled : tensor<32x1x33xf32>
  %y = tensor.extract %synced[%i, %c0, %i] : tensor<32x1x33xf32>
  %r = xla_gpu.atomic_rmw %t[%i, %i] : tensor<32x32xf32> {
  ^bb0(%current: f32):
    %sum = arith.addf %current, %y : f32
    xla_gpu.yield %sum : f32
  }
  return %r : tensor<32x32xf32>
}
func.func private @f(%t: tensor<32x32xf32>, %i: index) -> f32 {
  %x = tensor.extract %t[%i, %i] : tensor<32x32xf32>
  return %x : f32
}
// -----
// RUN: --only=flatten-tensors --twice
// Vectors: positions may be numbers or values; transfers along the last dimension stay transfers.
// CHECK: #map1 = #xla_gpu.indexing_map<"(d0) -> (d0 + 2), domain: d0 in [0, 1]">
// CHECK: %read = vector.transfer_read %t[%{{.*}}], %cst {in_bounds = [true]} : tensor<128xf32>, vector<2xf32>
// CHECK: %[[C:.*]] = xla_gpu.apply_indexing #map1(%i)
// CHECK-NEXT: %x = vector.extract %v[%[[C]]] : f32 from vector<4xf32>
// CHECK: vector.insert %{{.*}}, %v [%c3] : f32 into vector<4xf32>
// CHECK: vector.transfer_write %{{.*}}, %t[%{{.*}}] {in_bounds = [true]} : vector<2xf32>, tensor<128xf32>
func.func @vectors(%t: tensor<8x16xf32>, %v: vector<2x2xf32>, %i: index) -> (tensor<8x16xf32>, vector<2x2xf32>) {
  %zero = arith.constant 0.0 : f32
  %read = vector.transfer_read %t[%i, %i], %zero {in_bounds = [true]} : tensor<8x16xf32>, vector<2xf32>
  %x = vector.extract %v[1, %i] : f32 from vector<2x2xf32>
  %w = vector.insert %x, %v [1, 1] : f32 into vector<2x2xf32>
  %s = vector.transfer_write %read, %t[%i, %i] {in_bounds = [true]} : vector<2xf32>, tensor<8x16xf32>
  return %s, %w : tensor<8x16xf32>, vector<2x2xf32>
}
// -----
// RUN: --only=flatten-tensors
// A transfer that does not move neighbours cannot be flattened.
// ERROR: does not move neighbours in memory
func.func @across(%t: tensor<8x16xf32, dense<[0, 1]> : tensor<2xi64>>, %i: index) -> vector<2xf32> {
  %zero = arith.constant 0.0 : f32
  %read = vector.transfer_read %t[%i, %i], %zero {in_bounds = [true]} : tensor<8x16xf32, dense<[0, 1]> : tensor<2xi64>>, vector<2xf32>
  return %read : vector<2xf32>
}
