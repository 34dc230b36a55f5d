// RUN: --only=convert-complex-to-standard --twice
func.func @f(%x: complex<f32>, %y: complex<f32>) -> complex<f32> {
  %z = complex.mul %x, %y : complex<f32>
  return %z : complex<f32>
}
// CHECK: [[A:%[a-z0-9_]+]] = complex.re %x
// CHECK-NEXT: [[B:%[a-z0-9_]+]] = complex.im %x
// CHECK-NEXT: [[C:%[a-z0-9_]+]] = complex.re %y
// CHECK-NEXT: [[D:%[a-z0-9_]+]] = complex.im %y
// CHECK-NEXT: [[AC:%[a-z0-9_]+]] = arith.mulf [[A]], [[C]]
// CHECK-NEXT: [[BD:%[a-z0-9_]+]] = arith.mulf [[B]], [[D]]
// CHECK-NEXT: [[RE:%[a-z0-9_]+]] = arith.subf [[AC]], [[BD]]
// CHECK-NEXT: [[AD:%[a-z0-9_]+]] = arith.mulf [[A]], [[D]]
// CHECK-NEXT: [[BC:%[a-z0-9_]+]] = arith.mulf [[B]], [[C]]
// CHECK-NEXT: [[IM:%[a-z0-9_]+]] = arith.addf [[AD]], [[BC]]
// CHECK-NEXT: complex.create [[RE]], [[IM]] : complex<f32>
// -----
// RUN: --only=convert-complex-to-standard
// The parts of complex.create are used directly; a select of complex numbers becomes selects of parts.
func.func @f(%a: f64, %b: f64, %c: i1, %y: complex<f64>) -> (complex<f64>, i1) {
  %x = complex.create %a, %b : complex<f64>
  %s = arith.select %c, %x, %y : complex<f64>
  %e = complex.eq %x, %y : complex<f64>
  return %s, %e : complex<f64>, i1
}
// CHECK: [[RE:%[a-z0-9_]+]] = complex.re %y
// CHECK: arith.select %c, %a, [[RE]] : f64
// CHECK: arith.cmpf oeq, %a,
// CHECK: arith.cmpf oeq, %b,
// CHECK: arith.andi
// CHECK-NOT: complex.eq
