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
// Conversions for older GPUs, of other formats, and from f64, which would round twice, are expanded later.
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
// -----
// RUN: --only=convert-float-nvidia{sm=100}
func.func @f(%x: bf16, %z: f4E2M1FN, %w: f64) -> (f4E2M1FN, f32, f4E2M1FN) {
  %y = arith.truncf %x : bf16 to f4E2M1FN
  %u = arith.extf %z : f4E2M1FN to f32
  %v = arith.truncf %w : f64 to f4E2M1FN
  return %y, %u, %v : f4E2M1FN, f32, f4E2M1FN
}
// CHECK: [[X:%[a-z0-9_]+]] = arith.extf %x : bf16 to f32
// CHECK: [[P:%[a-z0-9_]+]] = llvm.call_intrinsic "llvm.nvvm.ff.to.e2m1x2.rn.satfinite"([[X]], [[X]])
// CHECK: [[B:%[a-z0-9_]+]] = arith.trunci [[P]] : i16 to i4
// CHECK-NEXT: arith.bitcast [[B]] : i4 to f4E2M1FN
// CHECK: [[Z:%[a-z0-9_]+]] = arith.bitcast %z : f4E2M1FN to i4
// CHECK: [[W:%[a-z0-9_]+]] = arith.extui [[Z]] : i4 to i16
// CHECK: [[H:%[a-z0-9_]+]] = llvm.call_intrinsic "llvm.nvvm.e2m1x2.to.f16x2.rn"([[W]])
// CHECK: vector.extract [[H]][0]
// CHECK: arith.truncf %w : f64
// -----
// RUN: --only=convert-float-nvidia{sm=102}
// PTX with the instruction runs only on the GPU that it is compiled for, and LLVM does not know this GPU.
func.func @f(%x: f32) -> f4E2M1FN {
  %y = arith.truncf %x : f32 to f4E2M1FN
  return %y : f4E2M1FN
}
// CHECK-NOT: intrinsic
// CHECK: arith.truncf
