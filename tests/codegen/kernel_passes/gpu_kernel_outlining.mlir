// RUN: --only=gpu-kernel-outlining --twice
// Two launches: ids and sizes are read in the kernel, a constant is copied, other values are passed.
// CHECK: module attributes {gpu.container_module}
// CHECK: gpu.module @main_kernel {
// CHECK-NEXT: gpu.func @main_kernel(%[[N:.*]]: index, %[[P:.*]]: !llvm.ptr) workgroup(%w : memref<4xf32, 3>) kernel attributes {known_block_size = array<i32: 64, 1, 1>} {
// CHECK-DAG: %[[B:.*]] = gpu.block_id  x
// CHECK-DAG: %[[T:.*]] = gpu.thread_id  y
// CHECK-DAG: %[[S:.*]] = gpu.grid_dim  z
// CHECK-DAG: %[[C:.*]] = arith.constant 64 : index
// CHECK: %[[A:.*]] = arith.addi %[[B]], %[[T]] : index
// CHECK-NEXT: %[[M:.*]] = arith.muli %[[A]], %[[C]] : index
// CHECK-NEXT: arith.addi %[[M]], %[[N]] : index
// CHECK: llvm.load %[[P]]
// CHECK: memref.load %w
// CHECK: gpu.return
// CHECK: gpu.module @main_kernel_0 {
// CHECK-NEXT: gpu.func @main_kernel_0() kernel {
// CHECK: gpu.block_dim  x
// CHECK: func.func @main(%p: !llvm.ptr, %n: index) {
// CHECK: gpu.launch_func @main_kernel::@main_kernel blocks in (%n, %c1, %c1) threads in (%c64, %c1, %c1) args(%n : index, %p : !llvm.ptr)
// CHECK-NEXT: gpu.launch_func @main_kernel_0::@main_kernel_0 blocks in (%c1, %c1, %c1) threads in (%n, %c1, %c1)
// CHECK-NEXT: return
func.func @main(%p: !llvm.ptr, %n: index) {
  %one = arith.constant 1 : index
  %size = arith.constant 64 : index
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %n, %gy = %one, %gz = %one) threads(%tx, %ty, %tz) in (%sx = %size, %sy = %one, %sz = %one) workgroup(%w : memref<4xf32, 3>) {
    %s = arith.addi %bx, %ty : index
    %m = arith.muli %s, %size : index
    %k = arith.addi %m, %n : index
    %g = arith.addi %k, %gz : index
    %x = llvm.load %p : !llvm.ptr -> f32
    %y = memref.load %w[%g] : memref<4xf32, 3>
    gpu.terminator
  }
  gpu.launch blocks(%bx, %by, %bz) in (%gx = %one, %gy = %one, %gz = %one) threads(%tx, %ty, %tz) in (%sx = %n, %sy = %one, %sz = %one) {
    %s = arith.addi %sx, %sx : index
    gpu.terminator
  }
  return
}
