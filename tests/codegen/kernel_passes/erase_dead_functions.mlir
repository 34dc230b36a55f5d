// RUN: --only=erase-dead-functions --twice
// CHECK-NOT: @dead
// CHECK: func.func @main
// CHECK: func.func private @used
// CHECK: func.func private @deeper
// CHECK: func.func private @combiner
// CHECK: func.func @other
// CHECK-NOT: @dead
func.func @main(%x: f32) -> f32 {
  %0 = xla_gpu.pure_call @used(%x) : (f32) -> f32
  %1 = xla_gpu.shuffle_reduce(%0) to 16 combiner=@combiner : f32
  return %1 : f32
}
func.func private @used(%x: f32) -> f32 {
  %0 = func.call @deeper(%x) : (f32) -> f32
  return %0 : f32
}
func.func private @deeper(%x: f32) -> f32 {
  return %x : f32
}
func.func private @combiner(%x: f32, %y: f32) -> f32 {
  return %x : f32
}
func.func private @dead(%x: f32) -> f32 {
  %0 = func.call @dead2(%x) : (f32) -> f32
  return %0 : f32
}
func.func private @dead2(%x: f32) -> f32 {
  %0 = func.call @dead(%x) : (f32) -> f32
  return %0 : f32
}
func.func @other() {
  return
}
