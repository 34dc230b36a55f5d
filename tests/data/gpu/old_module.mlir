module attributes {gpu.container_module} {
module @kernels attributes {gpu.kernel_module} {
  func @kernel_1(%arg0 : f32, %arg1 : memref<?xf32, 1>)
      attributes { nvvm.kernel = true } {
    %tIdX = "gpu.thread_id"() {dimension = "x"} : () -> (index)
    %bDimX = "gpu.block_dim"() {dimension = "x"} : () -> (index)
    %bIdX = "gpu.block_id"() {dimension = "x"} : () -> (index)
    %0 = muli %bIdX, %bDimX : index
    %1 = addi %0, %tIdX : index
    %42 = load %arg1[%1] : memref<?xf32, 1>
    %43 = mulf %42, %arg0 : f32
    store %43, %arg1[%1] : memref<?xf32, 1>
    return
  }
}
func @main(%arg0 : f32, %arg1 : memref<?xf32, 1>) {
  %c1 = constant 1 : index
  %c8 = constant 8 : index
  %cst = constant 128 : index
  "gpu.launch_func"(%c8, %c1, %c1, %cst, %c1, %c1, %arg0, %arg1)
      { kernel_module = @kernels, kernel = "kernel_1" }
      : (index, index, index, index, index, index, f32, memref<?xf32, 1>) -> ()
  return
}
}
