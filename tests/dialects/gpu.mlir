// RUN:
func.func @f(%v: f32, %n: i32) {
  // CHECK: %thread_id_y = gpu.thread_id y {xla.range = [0 : index, 7 : index]}
  %0 = gpu.thread_id  y {xla.range = [0 : index, 7 : index]}
  // CHECK: %block_id_z = gpu.block_id z
  %1 = gpu.block_id z
  // CHECK: %shuffleResult, %valid = gpu.shuffle down %v, %n, %n : f32
  %2, %3 = gpu.shuffle down %v, %n, %n : f32
  // CHECK: arith.select %valid, %shuffleResult, %v : f32
  %4 = arith.select %3, %2, %v : f32
  // CHECK: gpu.barrier
  gpu.barrier
  return
}
// -----
// RUN: --print_ir_generic
func.func @f(%v: f32, %n: i32) {
  // CHECK: "gpu.thread_id"() <{dimension = #gpu<dim x>}> : () -> index
  %0 = gpu.thread_id x
  // CHECK: %shuffleResult, %valid = "gpu.shuffle"(%v, %n, %n) <{mode = #gpu<shuffle_mode xor>}> : (f32, i32, i32) -> (f32, i1)
  %1, %2 = "gpu.shuffle"(%v, %n, %n) <{mode = #gpu<shuffle_mode xor>}> : (f32, i32, i32) -> (f32, i1)
  return
}
// -----
// RUN:
func.func @f() {
  // ERROR: Expected `x`, `y`, or `z`
  %0 = gpu.thread_id w
  return
}
