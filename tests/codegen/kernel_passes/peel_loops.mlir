// RUN: --only=peel-loops --twice
// Only the last of four steps can exceed 499: three steps need no check.
// CHECK: #map = #xla_gpu.indexing_map<"(th)[i] -> (i * 128 + th), domain: th in [0, 127], i in [0, 2]">
// CHECK-NEXT: #map1 = #xla_gpu.indexing_map<"(th)[i] -> (th + 384), domain: th in [0, 115], i in [3, 3]">
func.func @peel(%th: index, %t: tensor<500xf32>, %x: f32) -> tensor<500xf32> {
  // CHECK: %xla_loop = xla_gpu.loop (%th)[%i] -> (%a) in #map iter_args(%iter = %t)
  // CHECK-NEXT: %inserted = tensor.insert %x into %iter[%a]
  // CHECK: %xla_loop_0 = xla_gpu.loop (%th)[%i] -> (%a) in #map1 iter_args(%iter = %xla_loop)
  // CHECK-NEXT: %inserted = tensor.insert %x into %iter[%a]
  // CHECK: return %xla_loop_0
  %0 = xla_gpu.loop (%th)[%i] -> (%a) in #xla_gpu.indexing_map<"(th)[i] -> (th + i * 128), domain: th in [0, 127], i in [0, 3], th + i * 128 in [0, 499]"> iter_args(%iter = %t) -> (tensor<500xf32>) {
    %1 = tensor.insert %x into %iter[%a] : tensor<500xf32>
    xla_gpu.yield %1 : tensor<500xf32>
  }
  return %0 : tensor<500xf32>
}
// -----
// RUN: --only=peel-loops
// Two steps can exceed 299: peeling one does not remove the constraint of the others.
func.func @two(%th: index, %t: tensor<500xf32>, %x: f32) -> tensor<500xf32> {
  // CHECK: xla_gpu.loop
  // CHECK-NOT: xla_gpu.loop
  %0 = xla_gpu.loop (%th)[%i] -> (%a) in #xla_gpu.indexing_map<"(th)[i] -> (th + i * 128), domain: th in [0, 127], i in [0, 3], th + i * 128 in [0, 299]"> iter_args(%iter = %t) -> (tensor<500xf32>) {
    %1 = tensor.insert %x into %iter[%a] : tensor<500xf32>
    xla_gpu.yield %1 : tensor<500xf32>
  }
  return %0 : tensor<500xf32>
}
// -----
// RUN: --only=peel-loops
// A loop of 64 steps is not peeled.
func.func @many(%th: index, %t: tensor<8192xf32>, %x: f32) -> tensor<8192xf32> {
  // CHECK: xla_gpu.loop
  // CHECK-NOT: xla_gpu.loop
  %0 = xla_gpu.loop (%th)[%i] -> (%a) in #xla_gpu.indexing_map<"(th)[i] -> (th + i * 128), domain: th in [0, 127], i in [0, 63], th + i * 128 in [0, 8179]"> iter_args(%iter = %t) -> (tensor<8192xf32>) {
    %1 = tensor.insert %x into %iter[%a] : tensor<8192xf32>
    xla_gpu.yield %1 : tensor<8192xf32>
  }
  return %0 : tensor<8192xf32>
}
// -----
// RUN: --only=peel-loops
// Two range variables: the last is peeled first, then the first in each part.
func.func @both(%th: index, %t: tensor<36x70xf32>, %x: f32) -> tensor<36x70xf32> {
  // CHECK: #map = {{.*}}i in [0, 1], j in [0, 1]">
  // CHECK-NEXT: #map1 = {{.*}}i in [2, 2], j in [0, 1]
  // CHECK-NEXT: #map2 = {{.*}}i in [0, 1], j in [2, 2]
  // CHECK-NEXT: #map3 = {{.*}}i in [2, 2], j in [2, 2]
  // CHECK: xla_gpu.loop {{.*}} #map iter_args(%iter = %t)
  // CHECK: xla_gpu.loop {{.*}} #map1 iter_args(%iter = %xla_loop)
  // CHECK: xla_gpu.loop {{.*}} #map2 iter_args(%iter = %xla_loop_0)
  // CHECK: xla_gpu.loop {{.*}} #map3 iter_args(%iter = %xla_loop_1)
  %0 = xla_gpu.loop (%th)[%i, %j] -> (%a, %b) in #xla_gpu.indexing_map<"(th)[i, j] -> (th floordiv 32 + i * 16, th mod 32 + j * 32), domain: th in [0, 511], i in [0, 2], j in [0, 2], th floordiv 32 + i * 16 in [0, 35], th mod 32 + j * 32 in [0, 69]"> iter_args(%iter = %t) -> (tensor<36x70xf32>) {
    %1 = tensor.insert %x into %iter[%a, %b] : tensor<36x70xf32>
    xla_gpu.yield %1 : tensor<36x70xf32>
  }
  return %0 : tensor<36x70xf32>
}
