// RUN: --only=inliner
// The listing of the emitters text: one function left, its body in the loop.
#map = #xla_gpu.indexing_map<"(th_x, bl_x)[vector_index] -> (bl_x floordiv 4096, (bl_x floordiv 8) mod 512, (bl_x mod 8) * 512 + th_x * 4 + vector_index), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
// CHECK: func.func @main(%input: tensor<6x512x4096xbf16>, %output: tensor<6x512x4096xbf16>) -> tensor<6x512x4096xbf16> {
// CHECK-NEXT: %thread_id_x = gpu.thread_id x {xla.range = [0 : index, 127 : index]}
// CHECK-NEXT: %block_id_x = gpu.block_id x {xla.range = [0 : index, 24575 : index]}
// CHECK-NEXT: %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%vector_index] -> (%dim0, %dim1, %dim2) in #map iter_args(%iter = %output) -> (tensor<6x512x4096xbf16>) {
// CHECK: %extracted = tensor.extract %input[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
// CHECK-NEXT: %0 = arith.mulf %extracted, %extracted : bf16
// CHECK-NEXT: %1 = arith.mulf %0, %extracted : bf16
// CHECK-NEXT: %2 = arith.mulf %1, %cst{{.*}} : bf16
// CHECK-NEXT: %3 = arith.addf %extracted, %2 : bf16
// CHECK-NEXT: %4 = arith.mulf %3, %cst{{.*}} : bf16
// CHECK-NEXT: %5 = math.tanh %4 : bf16
// CHECK-NEXT: %6 = arith.addf %5, %cst{{.*}} : bf16
// CHECK-NEXT: %7 = arith.mulf %6, %cst{{.*}} : bf16
// CHECK-NEXT: %8 = arith.mulf %extracted, %7 : bf16
// CHECK-NEXT: %inserted = tensor.insert %8 into %iter[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
// CHECK-NEXT: xla_gpu.yield %inserted : tensor<6x512x4096xbf16>
// CHECK-NEXT: }
// CHECK-NEXT: return %xla_loop : tensor<6x512x4096xbf16>
// CHECK-NOT: func.func
func.func @main(%input: tensor<6x512x4096xbf16> , %output: tensor<6x512x4096xbf16>)
   -> tensor<6x512x4096xbf16> {
 %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
 %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}
 %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%vector_index] -> (%dim0, %dim1, %dim2)
     in #map iter_args(%iter = %output) -> (tensor<6x512x4096xbf16>) {
   %pure_call = xla_gpu.pure_call @gelu(%input, %dim0, %dim1, %dim2)
      : (tensor<6x512x4096xbf16>, index, index, index) -> bf16
   %inserted = tensor.insert %pure_call into %iter[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
   xla_gpu.yield %inserted : tensor<6x512x4096xbf16>
 }
 return %xla_loop : tensor<6x512x4096xbf16>
}
func.func private @gelu(%arg0: tensor<6x512x4096xbf16>, %i: index, %j: index, %k: index) -> bf16 {
  %cst = arith.constant 5.000000e-01 : bf16
  %cst_0 = arith.constant 1.000000e+00 : bf16
  %cst_1 = arith.constant 7.968750e-01 : bf16
  %cst_2 = arith.constant 4.467770e-02 : bf16
  %extracted = tensor.extract %arg0[%i, %j, %k] : tensor<6x512x4096xbf16>
  %0 = arith.mulf %extracted, %extracted : bf16
  %1 = arith.mulf %0, %extracted : bf16
  %2 = arith.mulf %1, %cst_2 : bf16
  %3 = arith.addf %extracted, %2 : bf16
  %4 = arith.mulf %3, %cst_1 : bf16
  %5 = math.tanh %4 : bf16
  %6 = arith.addf %5, %cst_0 : bf16
  %7 = arith.mulf %6, %cst : bf16
  %8 = arith.mulf %extracted, %7 : bf16
  return %8 : bf16
}
// -----
// RUN: --only=inliner --twice
// Two calls at different indices: not inlined. Two calls at the same indices are merged to one call: inlined.
func.func @main(%t: tensor<8xf32>, %i: index, %j: index) -> (f32, f32, f32, f32) {
  // CHECK: %pure_call = xla_gpu.pure_call @shared(%t, %i)
  // CHECK-NEXT: %pure_call_0 = xla_gpu.pure_call @shared(%t, %j)
  // CHECK-NEXT: %extracted = tensor.extract %t[%j]
  // CHECK-NEXT: %0 = math.sin %extracted
  // CHECK-NEXT: return %pure_call, %pure_call_0, %0, %0
  // CHECK: func.func private @shared
  // CHECK-NOT: @once
  %0 = xla_gpu.pure_call @shared(%t, %i) : (tensor<8xf32>, index) -> f32
  %1 = xla_gpu.pure_call @shared(%t, %j) : (tensor<8xf32>, index) -> f32
  %2 = xla_gpu.pure_call @once(%t, %j) : (tensor<8xf32>, index) -> f32
  %3 = xla_gpu.pure_call @once(%t, %j) : (tensor<8xf32>, index) -> f32
  return %0, %1, %2, %3 : f32, f32, f32, f32
}
func.func private @shared(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = tensor.extract %t[%i] : tensor<8xf32>
  %1 = math.exp %0 : f32
  return %1 : f32
}
func.func private @once(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = tensor.extract %t[%i] : tensor<8xf32>
  %1 = math.sin %0 : f32
  return %1 : f32
}
// -----
// RUN: --only=inliner
// A noinline call stays although it is the only one. no_compute is inlined in two calls. A public function has other uses.
func.func @main(%t: tensor<8xf32>, %i: index, %j: index) -> (f32, f32, f32, f32) {
  // CHECK: %pure_call = xla_gpu.pure_call @kept(%t, %i) {noinline}
  // CHECK-NEXT: %extracted = tensor.extract %t[%i]
  // CHECK-NEXT: %extracted_0 = tensor.extract %t[%j]
  // CHECK-NEXT: %pure_call_0 = xla_gpu.pure_call @public(%t, %j)
  // CHECK-NEXT: return
  %0 = xla_gpu.pure_call @kept(%t, %i) {noinline} : (tensor<8xf32>, index) -> f32
  %1 = xla_gpu.pure_call @moves(%t, %i) : (tensor<8xf32>, index) -> f32
  %2 = xla_gpu.pure_call @moves(%t, %j) : (tensor<8xf32>, index) -> f32
  %3 = xla_gpu.pure_call @public(%t, %j) : (tensor<8xf32>, index) -> f32
  return %0, %1, %2, %3 : f32, f32, f32, f32
}
func.func private @kept(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = tensor.extract %t[%i] : tensor<8xf32>
  return %0 : f32
}
func.func private @moves(%t: tensor<8xf32>, %i: index) -> f32 attributes {no_compute = true} {
  %0 = tensor.extract %t[%i] : tensor<8xf32>
  return %0 : f32
}
func.func @public(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = tensor.extract %t[%i] : tensor<8xf32>
  return %0 : f32
}
// -----
// RUN: --only=inliner
// Two functions need @a and @b, which both need @c: in @main, where they meet, they are inlined so that the calls of @c merge.
func.func @main(%t: tensor<8xf32>, %i: index) -> f32 {
  // CHECK-LABEL: func.func @main
  // CHECK-NEXT: %extracted = tensor.extract %t[%i]
  // CHECK-NEXT: %[[C:.*]] = math.exp %extracted
  // CHECK-NEXT: %[[A:.*]] = math.sin %[[C]]
  // CHECK-NEXT: %[[B:.*]] = math.cos %[[C]]
  // CHECK-NEXT: arith.addf %[[A]], %[[B]]
  // CHECK-NEXT: return
  // CHECK-NOT: func.func
  %0 = xla_gpu.pure_call @a(%t, %i) : (tensor<8xf32>, index) -> f32
  %1 = xla_gpu.pure_call @b(%t, %i) : (tensor<8xf32>, index) -> f32
  %2 = arith.addf %0, %1 : f32
  return %2 : f32
}
func.func private @a(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = xla_gpu.pure_call @c(%t, %i) : (tensor<8xf32>, index) -> f32
  %1 = math.sin %0 : f32
  return %1 : f32
}
func.func private @b(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = xla_gpu.pure_call @c(%t, %i) : (tensor<8xf32>, index) -> f32
  %1 = math.cos %0 : f32
  return %1 : f32
}
func.func private @c(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = tensor.extract %t[%i] : tensor<8xf32>
  %1 = math.exp %0 : f32
  return %1 : f32
}
// -----
// RUN: --only=inliner
// One call of @f in each of two functions: not inlined in @first, but in @second, which calls @c as @f does.
func.func @first(%t: tensor<8xf32>, %i: index) -> f32 {
  // CHECK: func.func @first
  // CHECK-NEXT: %pure_call = xla_gpu.pure_call @f(%t, %i)
  %0 = xla_gpu.pure_call @f(%t, %i) : (tensor<8xf32>, index) -> f32
  return %0 : f32
}
func.func @second(%t: tensor<8xf32>, %i: index) -> (f32, f32) {
  // CHECK: func.func @second
  // CHECK-NEXT: %pure_call = xla_gpu.pure_call @c(%t, %i)
  // CHECK-NEXT: %0 = math.exp %pure_call
  // CHECK-NEXT: return %pure_call, %0
  %0 = xla_gpu.pure_call @c(%t, %i) : (tensor<8xf32>, index) -> f32
  %1 = xla_gpu.pure_call @f(%t, %i) : (tensor<8xf32>, index) -> f32
  return %0, %1 : f32, f32
}
func.func private @f(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = xla_gpu.pure_call @c(%t, %i) : (tensor<8xf32>, index) -> f32
  %1 = math.exp %0 : f32
  return %1 : f32
}
func.func private @c(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = tensor.extract %t[%i] : tensor<8xf32>
  return %0 : f32
}
// -----
// RUN: --only=inliner
// Each loop body is a separate region with one call. The function has two uses and no other rule applies: not inlined.
func.func @main(%t: tensor<8xf32>, %u: tensor<8xf32>, %i: index) -> (tensor<8xf32>, f32) {
  // CHECK: xla_gpu.pure_call @f
  // CHECK: xla_gpu.pure_call @f
  // CHECK: func.func private @f
  %0 = xla_gpu.pure_call @f(%t, %i) : (tensor<8xf32>, index) -> f32
  %1 = xla_gpu.loop (%i)[%s] -> (%a) in #xla_gpu.indexing_map<"(d0)[s0] -> (d0 + s0), domain: d0 in [0, 3], s0 in [0, 1]"> iter_args(%iter = %u) -> (tensor<8xf32>) {
    %2 = xla_gpu.pure_call @f(%t, %a) : (tensor<8xf32>, index) -> f32
    %3 = tensor.insert %2 into %iter[%a] : tensor<8xf32>
    xla_gpu.yield %3 : tensor<8xf32>
  }
  return %1, %0 : tensor<8xf32>, f32
}
func.func private @f(%t: tensor<8xf32>, %i: index) -> f32 {
  %0 = tensor.extract %t[%i] : tensor<8xf32>
  return %0 : f32
}
// -----
// RUN: --only=inliner
// func.call of a reducer is inlined in both loops; two pure_calls of the same function are not.
func.func @main(%t: tensor<8xf32>, %x: f32, %y: f32) -> (f32, f32, f32, f32) {
  // CHECK: scf.for
  // CHECK: arith.maximumf
  // CHECK: scf.for
  // CHECK: arith.maximumf
  // CHECK: xla_gpu.pure_call @max
  // CHECK-NEXT: xla_gpu.pure_call @max
  // CHECK: func.func private @max
  // CHECK-NOT: func.call
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %0 = scf.for %i = %c0 to %c8 step %c1 iter_args(%a = %x) -> (f32) {
    %e = tensor.extract %t[%i] : tensor<8xf32>
    %s = func.call @max(%a, %e) {xla.is_reduction} : (f32, f32) -> f32
    scf.yield %s : f32
  }
  %1 = scf.for %i = %c0 to %c8 step %c1 iter_args(%a = %y) -> (f32) {
    %e = tensor.extract %t[%i] : tensor<8xf32>
    %s = func.call @max(%a, %e) {xla.is_reduction} : (f32, f32) -> f32
    scf.yield %s : f32
  }
  %2 = xla_gpu.pure_call @max(%0, %1) : (f32, f32) -> f32
  %3 = xla_gpu.pure_call @max(%2, %1) : (f32, f32) -> f32
  return %0, %1, %2, %3 : f32, f32, f32, f32
}
func.func private @max(%a: f32, %b: f32) -> f32 {
  %0 = arith.maximumf %a, %b : f32
  return %0 : f32
}
