// RUN: --only=lower-xla-gpu-to-scf
// The listing of the emitters text.
// CHECK: #map = #xla_gpu.indexing_map<"(th_x, bl_x)[vector_index] -> (bl_x floordiv 4096), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
// CHECK-NEXT: #map1 = #xla_gpu.indexing_map<"(th_x, bl_x)[vector_index] -> ((bl_x floordiv 8) mod 512), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
// CHECK-NEXT: #map2 = #xla_gpu.indexing_map<"(th_x, bl_x)[vector_index] -> ((bl_x mod 8) * 512 + th_x * 4 + vector_index), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
#map = #xla_gpu.indexing_map<"(th_x, bl_x)[vector_index] -> (bl_x floordiv 4096, (bl_x floordiv 8) mod 512, (bl_x mod 8) * 512 + th_x * 4 + vector_index), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
func.func @main(%input: tensor<6x512x4096xbf16>, %output: tensor<6x512x4096xbf16>) -> tensor<6x512x4096xbf16> {
  %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
  %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}
  // CHECK: %xla_loop = scf.for %vector_index = %c0 to %c4 step %c1 iter_args(%iter = %output) -> (tensor<6x512x4096xbf16>) {
  // CHECK-NEXT:   %[[A:.*]] = arith.cmpi sge, %thread_id_x, %c0 : index
  // CHECK-NEXT:   %[[B:.*]] = arith.cmpi sle, %thread_id_x, %c127 : index
  // CHECK-NEXT:   %[[C:.*]] = arith.andi %[[A]], %[[B]] : i1
  // CHECK-NEXT:   %[[D:.*]] = arith.cmpi sge, %block_id_x, %c0 : index
  // CHECK-NEXT:   %[[E:.*]] = arith.cmpi sle, %block_id_x, %c24575 : index
  // CHECK-NEXT:   %[[F:.*]] = arith.andi %[[D]], %[[E]] : i1
  // CHECK-NEXT:   %inbounds = arith.andi %[[C]], %[[F]] : i1
  // CHECK-NEXT:   %[[R:.*]] = scf.if %inbounds -> (tensor<6x512x4096xbf16>) {
  // CHECK-NEXT:     %dim0 = xla_gpu.apply_indexing #map(%thread_id_x, %block_id_x)[%vector_index]
  // CHECK-NEXT:     %dim1 = xla_gpu.apply_indexing #map1(%thread_id_x, %block_id_x)[%vector_index]
  // CHECK-NEXT:     %dim2 = xla_gpu.apply_indexing #map2(%thread_id_x, %block_id_x)[%vector_index]
  // CHECK-NEXT:     %extracted = tensor.extract %input[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
  // CHECK-NEXT:     %[[M:.*]] = arith.mulf %extracted, %extracted : bf16
  // CHECK-NEXT:     %inserted = tensor.insert %[[M]] into %iter[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
  // CHECK-NEXT:     scf.yield %inserted : tensor<6x512x4096xbf16>
  // CHECK-NEXT:   } else {
  // CHECK-NEXT:     scf.yield %iter : tensor<6x512x4096xbf16>
  // CHECK-NEXT:   }
  // CHECK-NEXT:   scf.yield %[[R]] : tensor<6x512x4096xbf16>
  // CHECK-NEXT: }
  // CHECK-NEXT: return %xla_loop
  %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%vector_index] -> (%dim0, %dim1, %dim2) in #map iter_args(%iter = %output) -> (tensor<6x512x4096xbf16>) {
    %extracted = tensor.extract %input[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
    %0 = arith.mulf %extracted, %extracted : bf16
    %inserted = tensor.insert %0 into %iter[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
    xla_gpu.yield %inserted : tensor<6x512x4096xbf16>
  }
  return %xla_loop : tensor<6x512x4096xbf16>
}
// -----
// RUN: --only=lower-xla-gpu-to-scf
// Two range variables: the first is the outer loop. Constraints are checked first, in printed order; a point by equality.
func.func @nested(%t: tensor<20x9xf32>, %u: tensor<4xi32>, %th: index, %x: f32, %n: i32) -> (tensor<20x9xf32>, tensor<4xi32>) {
  // CHECK: %[[L:.*]]:2 = scf.for %i = %c2 to %c5 step %c1 iter_args(%iter = %t, %iter_0 = %u)
  // CHECK-NEXT: %[[M:.*]]:2 = scf.for %j = %c0 to %c2 step %c1 iter_args(%iter_{{.*}} = %iter, %iter_{{.*}} = %iter_0)
  // CHECK-NEXT: %[[A:.*]] = xla_gpu.apply_indexing #map(%th)[%i, %j]
  // CHECK-NEXT: %[[B:.*]] = xla_gpu.apply_indexing #map1(%th)[%i, %j]
  // CHECK-NEXT: arith.cmpi eq, %[[A]], %c1 : index
  // CHECK-NEXT: arith.cmpi sge, %[[B]], %c0 : index
  // CHECK-NEXT: arith.cmpi sle, %[[B]], %c18 : index
  // CHECK-NEXT: arith.andi
  // CHECK-NEXT: arith.andi
  // CHECK-NEXT: arith.cmpi sge, %th, %c0
  // CHECK-NEXT: arith.cmpi sle, %th, %c15
  // CHECK-NEXT: arith.andi
  // CHECK-NEXT: %inbounds = arith.andi
  // CHECK-NEXT: %[[I:.*]]:2 = scf.if %inbounds
  // CHECK: else
  // CHECK-NEXT: scf.yield %iter_{{.*}}, %iter_{{.*}} : tensor<20x9xf32>, tensor<4xi32>
  // CHECK-NEXT: }
  // CHECK-NEXT: scf.yield %[[I]]#0, %[[I]]#1
  // CHECK-NEXT: }
  // CHECK-NEXT: scf.yield %[[M]]#0, %[[M]]#1
  // CHECK-NEXT: }
  // CHECK-NEXT: return %[[L]]#0, %[[L]]#1
  %0:2 = xla_gpu.loop (%th)[%i, %j] -> (%a, %b) in #xla_gpu.indexing_map<"(th)[i, j] -> (th + i, j), domain: th in [0, 15], i in [2, 4], j in [0, 1], th + i in [0, 18], (th + j) mod 2 in [1, 1]"> iter_args(%iter = %t, %iter_0 = %u) -> (tensor<20x9xf32>, tensor<4xi32>) {
    %1 = tensor.insert %x into %iter[%a, %b] : tensor<20x9xf32>
    %2 = tensor.insert %n into %iter_0[%j] : tensor<4xi32>
    xla_gpu.yield %1, %2 : tensor<20x9xf32>, tensor<4xi32>
  }
  return %0#0, %0#1 : tensor<20x9xf32>, tensor<4xi32>
}
// -----
// RUN: --only=lower-xla-gpu-to-scf
// Without range variables the result is one guarded step; without inits it yields nothing.
func.func @step(%th: index) {
  // CHECK: arith.cmpi sge, %th, %c0
  // CHECK: scf.if %inbounds {
  // CHECK-NEXT: %a = xla_gpu.apply_indexing #map(%th)
  // CHECK-NEXT: gpu.barrier
  // CHECK-NEXT: }
  // CHECK-NEXT: return
  xla_gpu.loop (%th)[] -> (%a) in #xla_gpu.indexing_map<"(th) -> (th * 2), domain: th in [0, 15]"> {
    gpu.barrier
    xla_gpu.yield
  }
  return
}
// -----
// RUN: --only=lower-xla-gpu-to-scf
// An empty domain leaves the initial value.
func.func @empty(%th: index, %t: tensor<4xf32>, %x: f32) -> tensor<4xf32> {
  // CHECK-NOT: scf
  // CHECK: return %t
  %0 = xla_gpu.loop (%th)[%i] -> (%a) in #xla_gpu.indexing_map<"(th)[i] -> (i), domain: th in [0, 15], i in [0, -1]"> iter_args(%iter = %t) -> (tensor<4xf32>) {
    %1 = tensor.insert %x into %iter[%a] : tensor<4xf32>
    xla_gpu.yield %1 : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}
// -----
// RUN: --only=lower-xla-gpu-to-scf,simplify-arith,canonicalize
// If the ranges of ids are known, the checks are removed, and only the body stays.
func.func @checks_go(%t: tensor<512xf32>, %x: f32) -> tensor<512xf32> {
  // CHECK: scf.for %i = %c0 to %c4 step %c1 iter_args(%iter = %t)
  // CHECK-NEXT: %{{.*}} = xla_gpu.apply_indexing #map(%thread_id_x, %i)
  // CHECK-NEXT: tensor.insert
  %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
  %0 = xla_gpu.loop (%thread_id_x)[%i] -> (%a) in #xla_gpu.indexing_map<"(th)[i] -> (th * 4 + i), domain: th in [0, 127], i in [0, 3]"> iter_args(%iter = %t) -> (tensor<512xf32>) {
    %1 = tensor.insert %x into %iter[%a] : tensor<512xf32>
    xla_gpu.yield %1 : tensor<512xf32>
  }
  return %0 : tensor<512xf32>
}
