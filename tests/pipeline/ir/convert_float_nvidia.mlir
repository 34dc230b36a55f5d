// RUN: --only=convert-float-nvidia{sm=90}
func.func @f(%x: f32) -> f8E5M2 {
  %y = arith.truncf %x : f32 to f8E5M2
  return %y : f8E5M2
}
// CHECK: [[P:%[a-z0-9_]+]] = llvm.call_intrinsic "llvm.nvvm.ff.to.e5m2x2.rn"(%x, %x)
// CHECK: [[B:%[a-z0-9_]+]] = arith.trunci [[P]] : i16 to i8
// CHECK: arith.cmpf oge, {{%[a-z0-9_]+}}, %cst
// CHECK: [[V:%[a-z0-9_]+]] = arith.select {{%[a-z0-9_]+}}, {{%[a-z0-9_]+}}, [[B]] : i8
// CHECK: arith.bitcast [[V]] : i8 to f8E5M2
// -----
// RUN: --only=convert-float-nvidia{sm=89}
func.func @f(%x: f8E4M3FN) -> f32 {
  %y = arith.extf %x : f8E4M3FN to f32
  return %y : f32
}
// CHECK: [[P:%[a-z0-9_]+]] = llvm.call_intrinsic "llvm.nvvm.e4m3x2.to.f16x2.rn"
// CHECK: [[H:%[a-z0-9_]+]] = vector.extract [[P]][0]
// CHECK: arith.extf [[H]] : f16 to f32
// -----
// RUN: --only=convert-float-nvidia{sm=80}
// Older cards, other formats and f64, which would be rounded twice, are expanded later.
func.func @f(%x: f32) -> f8E5M2 {
  %y = arith.truncf %x : f32 to f8E5M2
  return %y : f8E5M2
}
// CHECK: arith.truncf
// -----
// RUN: --only=convert-float-nvidia{sm=90}
func.func @f(%x: f64, %z: f32) -> (f8E5M2, f8E3M4) {
  %y = arith.truncf %x : f64 to f8E5M2
  %w = arith.truncf %z : f32 to f8E3M4
  return %y, %w : f8E5M2, f8E3M4
}
// CHECK-NOT: intrinsic
// CHECK: arith.truncf %x
// CHECK: arith.truncf %z
