// RUN:
module attributes {gpu.container_module} {
  // CHECK: gpu.module @kernels {
  gpu.module @kernels {
    func.func @kernel_1(%x: f32) -> f32 {
      // CHECK: %{{.*}} = gpu.block_dim  x
      %0 = gpu.block_dim x
      // CHECK: gpu.grid_dim  z {xla.range = [1 : index, 8 : index]}
      %1 = gpu.grid_dim z {xla.range = [1 : index, 8 : index]}
      // CHECK: gpu.all_reduce add %x {
      // CHECK-NEXT: } : (f32) -> f32
      %2 = gpu.all_reduce add %x {
      } : (f32) -> (f32)
      // CHECK: gpu.all_reduce %{{.*}} {
      // CHECK: gpu.yield %{{.*}} : f32
      // CHECK: } : (f32) -> f32
      %3 = gpu.all_reduce %2 {
      ^bb0(%lhs: f32, %rhs: f32):
        %sum = arith.addf %lhs, %rhs : f32
        gpu.yield %sum : f32
      } : (f32) -> (f32)
      return %3 : f32
    }
  }
  func.func @main(%p: !llvm.ptr, %n: index) {
    // CHECK: gpu.launch_func @kernels::@kernel_1 blocks in (%n, %n, %n) threads in (%n, %n, %n) args(%p : !llvm.ptr)
    gpu.launch_func @kernels::@kernel_1 blocks in (%n, %n, %n) threads in (%n, %n, %n) args(%p : !llvm.ptr)
    // CHECK: gpu.launch blocks(%bx, %by, %bz) in (%gx = %n, %gy = %n, %gz = %n) threads(%tx, %ty, %tz) in (%sx = %n, %sy = %n, %sz = %n) {
    gpu.launch blocks(%bx, %by, %bz) in (%gx = %n, %gy = %n, %gz = %n) threads(%tx, %ty, %tz) in (%sx = %n, %sy = %n, %sz = %n) args(%a = %p) : !llvm.ptr {
      // CHECK: llvm.load %p
      // CHECK: arith.addi %bx, %tx
      %x = llvm.load %a : !llvm.ptr -> f32
      %s = arith.addi %bx, %tx : index
      // CHECK: gpu.terminator
      gpu.terminator
    }
    return
  }
}
// -----
// RUN: --print_ir_generic
func.func @f(%x: f32) -> f32 {
  // CHECK: "gpu.grid_dim"() <{dimension = #gpu<dim y>}> : () -> index
  %0 = "gpu.grid_dim"() <{dimension = #gpu<dim y>}> : () -> index
  // CHECK: "gpu.all_reduce"(%x) <{op = #gpu<all_reduce_op mul>}> ({
  %1 = "gpu.all_reduce"(%x) <{op = #gpu<all_reduce_op mul>}> ({
  }) : (f32) -> f32
  return %1 : f32
}
// -----
// RUN:
// ERROR: all_reduce has either an operation or a body
func.func @f(%x: f32) -> f32 {
  %1 = gpu.all_reduce %x {
  } : (f32) -> f32
  return %1 : f32
}
// -----
// RUN:
// ERROR: all_reduce cannot compute 'xor' of this type
func.func @f(%x: f32) -> f32 {
  %1 = gpu.all_reduce xor %x {
  } : (f32) -> f32
  return %1 : f32
}
// -----
// RUN:
// ERROR: the body of all_reduce must yield one value
func.func @f(%x: f32) -> f32 {
  %1 = gpu.all_reduce %x {
  ^bb0(%l: f32, %r: f32):
    gpu.yield %l, %r : f32, f32
  } : (f32) -> f32
  return %1 : f32
}
// -----
// RUN:
func.func @f(%x: f32) -> f32 {
  // ERROR: 'average' is not a reduction
  %1 = gpu.all_reduce average %x {
  } : (f32) -> f32
  return %1 : f32
}
// -----
// RUN:
// ERROR: a launch needs three grid sizes and three block sizes
func.func @f(%n: index) {
  gpu.launch_func @m::@k blocks in (%n) threads in (%n, %n, %n)
  return
}
// -----
// RUN:
// ERROR: names a module and a kernel in it
func.func @f(%n: index) {
  gpu.launch_func @k blocks in (%n, %n, %n) threads in (%n, %n, %n)
  return
}
// -----
// RUN:
// ERROR: the body of gpu.launch must end in gpu.terminator
func.func @f(%n: index) {
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %n, %gy = %n, %gz = %n) threads(%tx, %ty, %tz) in (%sx = %n, %sy = %n, %sz = %n) {
    gpu.yield %bx : index
  }
  return
}
