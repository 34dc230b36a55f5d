// RUN:
// XLA's spelling of a kernel as emitted is read and printed as ours.
#indexing_map = #xla.indexing_map<"(th_x, bl_x)[s] -> (bl_x * 256 + th_x * 2 + s), domain: th_x in [0, 127], bl_x in [0, 1], s in [0, 1]">
module @k_kernel_module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
  // CHECK: func.func @k
  // CHECK-SAME: attributes {xla.backend_kind = #xla.backend_kind<gpu>, xla.entry}
  func.func @k(%arg0: tensor<512xf32> {xla.slice_index = 0 : index}, %arg1: tensor<512xf32> {xla.slice_index = 1 : index}) -> tensor<512xf32> attributes {xla.backend_kind = #xla.backend_kind<gpu>, xla.entry} {
    // CHECK: %block_id_x = gpu.block_id  x {xla.range = [0 : index, 1 : index]}
    %0 = xla.workgroup_id x {xla.range = [0 : index, 1 : index]}
    // CHECK: %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
    // CHECK-NOT: scf.forall
    %3 = scf.forall (%arg2, %arg3, %arg4) in (128, 1, 1) shared_outs(%arg5 = %arg1) -> (tensor<512xf32>) {
      // CHECK: xla_gpu.loop (%thread_id_x, %block_id_x)[%s] -> (%ra) in #map iter_args(%iter = %arg1)
      %xla_loop = xla.loop (%arg2, %0)[%s] -> (%ra) in #indexing_map iter_args(%iter = %arg5) -> (tensor<512xf32>) {
        // CHECK: xla_gpu.pure_call @f(%arg0, %ra)
        %pure_call = xla.pure_call @f(%arg0, %ra) : (tensor<512xf32>, index) -> f32
        %inserted = tensor.insert %pure_call into %iter[%ra] : tensor<512xf32>
        xla.yield %inserted : tensor<512xf32>
      }
      scf.forall.in_parallel {
        tensor.parallel_insert_slice %xla_loop into %arg5[0] [512] [1] : tensor<512xf32> into tensor<512xf32>
      }
    }
    // CHECK: return %xla_loop
    return %3 : tensor<512xf32>
  }
  // CHECK: llvm.linkage = #llvm.linkage<internal>
  func.func private @f(%arg0: tensor<512xf32>, %arg1: index) -> f32 attributes {llvm.linkage = #llvm.linkage<internal>} {
    %extracted = tensor.extract %arg0[%arg1] : tensor<512xf32>
    return %extracted : f32
  }
}
// -----
// RUN:
#indexing_map = #xla.indexing_map<"(d0) -> (d0 * 2), domain: d0 in [0, 7]">
func.func @f(%t: tensor<16xf32>, %i: index, %x: f32, %c: i1) -> (tensor<16xf32>, f32) {
  // CHECK: %[[I:.*]] = xla_gpu.apply_indexing #map(%i)
  %0 = xla.apply_indexing #indexing_map(%i)
  // CHECK: xla_gpu.predicated_insert %x into %t[%[[I]]] if %c
  %1 = xla.predicated_insert %x into %t[%0] if %c : tensor<16xf32>
  // CHECK: xla_gpu.atomic_rmw
  %2 = xla.atomic_rmw %1[%0] : tensor<16xf32> {
  ^bb0(%current: f32):
    %s = arith.addf %current, %x : f32
    xla.yield %s : f32
  }
  // CHECK: llvm.mlir.poison
  // CHECK: vector.insert %x
  %p = ub.poison : f32
  %v = vector.from_elements %x, %p : vector<2xf32>
  %e = vector.extract %v[0] : f32 from vector<2xf32>
  return %2, %e : tensor<16xf32>, f32
}
// -----
// RUN:
// Casts that undo each other are gone.
// CHECK: func.func @f
// CHECK-NEXT: return %p
func.func @f(%p: !llvm.ptr) -> !llvm.ptr {
  %0 = builtin.unrealized_conversion_cast %p : !llvm.ptr to tensor<900xi4>
  %1 = builtin.unrealized_conversion_cast %0 : tensor<900xi4> to !llvm.ptr
  return %1 : !llvm.ptr
}
// -----
// RUN:
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  %3 = scf.forall (%t) in (8) shared_outs(%o = %a) -> (tensor<8xf32>) {
    scf.forall.in_parallel {
      // ERROR: tensor.parallel_insert_slice of a part is not supported
      tensor.parallel_insert_slice %o into %o[0] [4] [1] : tensor<8xf32> into tensor<8xf32>
    }
  }
  return %3 : tensor<8xf32>
}
// -----
// RUN:
// ERROR: scf.forall must write each shared output once
func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {
  %3 = scf.forall (%t) in (8) shared_outs(%o = %a) -> (tensor<8xf32>) {
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %o into %a[0] [8] [1] : tensor<8xf32> into tensor<8xf32>
    }
  }
  return %3 : tensor<8xf32>
}
// -----
// RUN:
func.func @f(%x: f32) -> vector<3xf32> {
  // ERROR: expected a vector of 2 elements
  %v = vector.from_elements %x, %x : vector<3xf32>
  return %v : vector<3xf32>
}
