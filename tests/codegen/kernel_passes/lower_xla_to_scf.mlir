// RUN: --only=lower-xla-to-scf --twice
func.func @predicated(%t: tensor<4x8xf32>, %i: index, %j: index, %c: i1, %f: f32) -> tensor<4x8xf32> {
  // CHECK: %v = scf.if %c -> (f32) {
  // CHECK-NEXT: %extracted = tensor.extract %t[%i, %j] : tensor<4x8xf32>
  // CHECK-NEXT: scf.yield %extracted : f32
  // CHECK-NEXT: } else {
  // CHECK-NEXT: scf.yield %f : f32
  // CHECK-NEXT: }
  // CHECK-NEXT: %r = scf.if %c -> (tensor<4x8xf32>) {
  // CHECK-NEXT: %inserted = tensor.insert %v into %t[%j, %i] : tensor<4x8xf32>
  // CHECK-NEXT: scf.yield %inserted : tensor<4x8xf32>
  // CHECK-NEXT: } else {
  // CHECK-NEXT: scf.yield %t : tensor<4x8xf32>
  // CHECK-NEXT: }
  // CHECK-NEXT: return %r
  %v = xla_gpu.predicated_extract %t[%i, %j] if %c else %f : tensor<4x8xf32>
  %r = xla_gpu.predicated_insert %v into %t[%j, %i] if %c : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
// -----
// RUN: --only=lower-xla-to-scf --twice
// All values of a distance are moved before they are combined.
func.func @reduce(%a: f32, %n: i32) -> (f32, i32) {
  // CHECK: %[[A:.*]], %{{.*}} = gpu.shuffle down %a, %c2_i32, %c32_i32 : f32
  // CHECK: %[[N:.*]], %{{.*}} = gpu.shuffle down %n, %c2_i32{{.*}}, %c32_i32{{.*}} : i32
  // CHECK-NEXT: %[[C:.*]]:2 = xla_gpu.pure_call @combine(%a, %n, %[[A]], %[[N]]) : (f32, i32, f32, i32) -> (f32, i32)
  // CHECK: %[[B:.*]], %{{.*}} = gpu.shuffle down %[[C]]#0, %c1_i32, %c32_i32{{.*}} : f32
  // CHECK: %[[M:.*]], %{{.*}} = gpu.shuffle down %[[C]]#1, %c1_i32{{.*}}, %c32_i32{{.*}} : i32
  // CHECK-NEXT: %[[D:.*]]:2 = xla_gpu.pure_call @combine(%[[C]]#0, %[[C]]#1, %[[B]], %[[M]])
  // CHECK-NEXT: return %[[D]]#0, %[[D]]#1
  %0:2 = xla_gpu.shuffle_reduce(%a, %n) to 2 combiner=@combine : f32, i32
  return %0#0, %0#1 : f32, i32
}
func.func private @combine(%a: f32, %n: i32, %b: f32, %m: i32) -> (f32, i32) {
  %0 = arith.addf %a, %b : f32
  return %0, %m : f32, i32
}
// -----
// RUN: --only=lower-xla-to-scf
// Short types are extended, long types are split.
func.func @types(%a: f64, %b: bf16, %c: i8) -> (f64, bf16, i8) {
  // CHECK: %[[I:.*]] = arith.bitcast %a : f64 to i64
  // CHECK-NEXT: %[[L:.*]] = arith.trunci %[[I]] : i64 to i32
  // CHECK: %[[SL:.*]], %{{.*}} = gpu.shuffle down %[[L]],
  // CHECK: %[[S:.*]] = arith.shrui %[[I]], %c32_i64 : i64
  // CHECK-NEXT: %[[H:.*]] = arith.trunci %[[S]] : i64 to i32
  // CHECK: %[[SH:.*]], %{{.*}} = gpu.shuffle down %[[H]],
  // CHECK-NEXT: %[[EL:.*]] = arith.extui %[[SL]] : i32 to i64
  // CHECK-NEXT: %[[EH:.*]] = arith.extui %[[SH]] : i32 to i64
  // CHECK: %[[U:.*]] = arith.shli %[[EH]], %c32_i64
  // CHECK-NEXT: %[[J:.*]] = arith.ori %[[EL]], %[[U]] : i64
  // CHECK-NEXT: arith.bitcast %[[J]] : i64 to f64
  // CHECK: arith.bitcast %b : bf16 to i16
  // CHECK-NEXT: arith.extui {{.*}} : i16 to i32
  // CHECK: gpu.shuffle
  // CHECK-NEXT: arith.trunci {{.*}} : i32 to i16
  // CHECK-NEXT: arith.bitcast {{.*}} : i16 to bf16
  // CHECK-NEXT: arith.extui %c : i8 to i32
  %0:3 = xla_gpu.shuffle_reduce(%a, %b, %c) to 1 combiner=@combine : f64, bf16, i8
  return %0#0, %0#1, %0#2 : f64, bf16, i8
}
func.func private @combine(%a: f64, %b: bf16, %c: i8, %d: f64, %e: bf16, %f: i8) -> (f64, bf16, i8) {
  return %a, %b, %c : f64, bf16, i8
}
// -----
// RUN: --only=lower-xla-to-scf
// CHECK: complex.re %z
// CHECK-NEXT: complex.im %z
// CHECK: gpu.shuffle
// CHECK: gpu.shuffle
// CHECK-NEXT: complex.create
func.func @complex(%z: complex<f32>) -> complex<f32> {
  %0 = xla_gpu.shuffle_reduce(%z) to 1 combiner=@combine : complex<f32>
  return %0 : complex<f32>
}
func.func private @combine(%a: complex<f32>, %b: complex<f32>) -> complex<f32> {
  return %a : complex<f32>
}
// -----
// RUN: --only=lower-xla-to-scf
func.func @lanes(%a: f32) -> f32 {
  // ERROR: a shuffle_reduce over 32 lanes; the distance must be a power of two below 32
  %0 = xla_gpu.shuffle_reduce(%a) to 32 combiner=@combine : f32
  return %0 : f32
}
func.func private @combine(%a: f32, %b: f32) -> f32 {
  return %a : f32
}
