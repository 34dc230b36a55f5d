// RUN: --only=lower-pdl-wait --twice
// XLA prints the ops in generic form.
func.func @kernel() {
  // CHECK: nvvm.griddepcontrol wait
  // CHECK-NEXT: nvvm.griddepcontrol launch_dependents
  // CHECK-NEXT: return
  "xla_gpu.pdl_wait"() : () -> ()
  xla_gpu.pdl_launch_dependents
  return
}
