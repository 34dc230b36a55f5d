// RUN: --only=expand-float-ops --twice
// tanh of f32: the argument is clamped, small arguments give themselves, unordered comparisons keep NaN.
func.func @f(%x: f32) -> f32 {
  %y = math.tanh %x : f32
  return %y : f32
}
// CHECK: arith.cmpf ult, %x, %cst : f32
// CHECK: arith.cmpf ugt
// CHECK: [[C:%y_[0-9]+]] = arith.select
// CHECK: [[M:%y_[0-9]+]] = math.absf %x : f32
// CHECK: [[S:%y_[0-9]+]] = arith.mulf [[C]], [[C]] : f32
// CHECK-COUNT-6: math.fma
// CHECK: [[P:%y_[0-9]+]] = arith.mulf [[C]]
// CHECK-COUNT-3: math.fma
// CHECK: [[Q:%y_[0-9]+]] = arith.divf [[P]]
// CHECK: [[SMALL:%y_[0-9]+]] = arith.cmpf olt, [[M]]
// CHECK: [[R:%y_[0-9]+]] = arith.select [[SMALL]], [[C]], [[Q]] : f32
// CHECK: return [[R]]
// -----
// RUN: --only=expand-float-ops --twice
func.func @f(%x: f32) -> f32 {
  %y = math.erf %x : f32
  return %y : f32
}
// CHECK: math.copysign {{%cst[_0-9]*}}, %x : f32
// CHECK: arith.maximumf %x
// CHECK-COUNT-10: math.fma
// CHECK: arith.divf
// CHECK: arith.cmpf oge
// CHECK-NOT: math.erf
// -----
// RUN: --only=expand-float-ops
// tanh of other types is left to libdevice; abs of bf16 clears the sign bit.
func.func @f(%a: bf16, %b: f16, %c: f64, %d: f32) -> (bf16, f16, f64, f32) {
  %w = math.tanh %a : bf16
  %x = math.tanh %b : f16
  %y = math.erf %c : f64
  %z = math.absf %d : f32
  %v = math.absf %w : bf16
  return %v, %x, %y, %z : bf16, f16, f64, f32
}
// CHECK: %w = math.tanh %a : bf16
// CHECK: math.tanh %b : f16
// CHECK: math.erf %c : f64
// CHECK: math.absf %d : f32
// CHECK: [[B:%[a-z0-9_]+]] = arith.bitcast %w : bf16 to i16
// CHECK: [[A:%[a-z0-9_]+]] = arith.andi [[B]], %c32767_i16 : i16
// CHECK: arith.bitcast [[A]] : i16 to bf16
// -----
// RUN: --only=expand-float-ops
// Conversions of floats of at most 8 bits become integer arithmetic; comparisons are of f32.
func.func @f(%x: f32, %a: f8E3M4, %b: f8E3M4) -> (f8E3M4, i1) {
  %y = arith.truncf %x : f32 to f8E3M4
  %c = arith.cmpf olt, %a, %b : f8E3M4
  return %y, %c : f8E3M4, i1
}
// CHECK: arith.bitcast %x : f32 to i32
// CHECK: [[N:%[a-z0-9_]+]] = arith.trunci {{%[a-z0-9_]+}} : i32 to i8
// CHECK: arith.bitcast [[N]] : i8 to f8E3M4
// CHECK: arith.bitcast %a : f8E3M4 to i8
// CHECK: arith.cmpf olt, {{%[a-z0-9_]+}}, {{%[a-z0-9_]+}} : f32
// CHECK-NOT: truncf
// -----
// RUN: --only=expand-float-ops --twice
// Integers and floats of 8 bits convert by way of f32. XLA emits such conversions.
// CHECK: %[[WIDE:.*]] = arith.sitofp %n : i8 to f32
// CHECK-NOT: arith.fptoui %{{.*}} : f8E5M2FNUZ
// CHECK: arith.fptoui %{{.*}} : f32 to i16
func.func @main(%n: i8, %x: i8) -> i16 {
  %f = arith.sitofp %n : i8 to f8E5M2FNUZ
  %r = arith.fptoui %f : f8E5M2FNUZ to i16
  return %r : i16
}
