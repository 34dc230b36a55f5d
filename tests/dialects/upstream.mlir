// RUN:
module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
func.func @k(%p: tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>> {xla.slice_index = 0 : index, xla.invariant, llvm.align = 16 : i64, llvm.dereferenceable = 24 : i64}, %i: index {xla.range = [0 : index, 3 : index]}, %n: i32, %b: i1, %f: f32, %t1: tensor<16xbf16>, %z: complex<f32>) -> tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>> attributes {xla.entry} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %true = arith.constant true
  %c-1_i32 = arith.constant -1 : i32
  %nan = arith.constant 0x7FC00000 : f32
  %inf = arith.constant 0x7F80 : bf16
  %pi = arith.constant 3.14159274 : f32
  %third = arith.constant 0.33333333333333331 : f64
  %h = arith.constant 6.103520e-05 : f16
  %e8 = arith.constant 4.480000e+02 : f8E4M3FN
  %v0 = arith.constant dense<0.000000e+00> : vector<4xbf16>
  %arr = arith.constant dense<[1, 2, 3]> : tensor<3xi32>
  %arr2 = arith.constant dense<[[1.0, 2.5], [3.0, 4.0]]> : tensor<2x2xf32>
  %mz = arith.constant -0.000000e+00 : f32
  %e = tensor.empty() : tensor<4xf32>
  %x = tensor.extract %p[%c0, %i] : tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>
  %c = arith.cmpi sge, %i, %c0 : index
  %cc = arith.cmpf une, %x, %f : f32
  %r = arith.remf %x, %f : f32
  %ic = arith.index_castui %i : index to i32
  %ic2 = arith.index_cast %ic : i32 to index
  %ov = arith.addi %n, %ic overflow<nsw, nuw> : i32
  %fm = arith.addf %x, %f fastmath<nsz> : f32
  %cb = math.cbrt %fm : f32
  %fma = math.fma %x, %f, %cb : f32
  %afn = math.exp %x fastmath<afn> : f32
  %ct = math.ctlz %n : i32
  %sel = arith.select %c, %x, %f : f32
  %s8 = arith.extsi %b : i1 to i8
  %bf = arith.truncf %x : f32 to bf16
  %re = complex.re %z : complex<f32>
  %zz = complex.create %re, %x : complex<f32>
  %zm = complex.mul %zz, %z : complex<f32>
  %zc = complex.constant [1.000000e+00 : f32, -1.000000e+00 : f32] : complex<f32>
  %tr = vector.transfer_read %t1[%c0], %bf {in_bounds = [true]} : tensor<16xbf16>, vector<4xbf16>
  %ve = vector.extract %tr[%i] : bf16 from vector<4xbf16>
  %ve0 = vector.extract %tr[0] : bf16 from vector<4xbf16>
  %vi = vector.insert %ve, %tr [%i] : bf16 into vector<4xbf16>
  %vb = vector.broadcast %bf : bf16 to vector<4xbf16>
  %tw = vector.transfer_write %vi, %t1[%c0] {in_bounds = [true]} : vector<4xbf16>, tensor<16xbf16>
  %l:2 = scf.for %iv = %c0 to %c4 step %c1 iter_args(%a = %p, %v = %v0) -> (tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>, vector<4xbf16>) {
    %q = scf.if %c -> (f32) {
      scf.yield %x : f32
    } else {
      scf.yield %f : f32
    }
    scf.if %b {
      gpu.barrier
    }
    %ins = tensor.insert %q into %a[%c0, %iv] : tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>
    scf.yield %ins, %v : tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>, vector<4xbf16>
  }
  %sw = scf.index_switch %i -> f32
  case 0 {
    scf.yield %x : f32
  }
  case 5 {
    scf.yield %f : f32
  }
  default {
    scf.yield %cb : f32
  }
  scf.for %iv = %c0 to %c4 step %c1 {
    %cw = func.call @g(%iv) : (index) -> f32
    %sh, %ok = gpu.shuffle  down %cw, %n, %n : f32
  }
  %cw2 = call @g(%i) : (index) -> f32
  %af = affine.apply affine_map<(d0)[s0] -> (d0 mod 4 + s0 floordiv 2)>(%i)[%c4]
  %d = tensor.dim %t1, %c0 : tensor<16xbf16>
  return %l#0 : tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>
}
func.func private @g(%i: index) -> f32 {
  %c0 = arith.constant 0 : index
  %one = arith.constant 1.0 : f32
  %c = arith.cmpi eq, %i, %c0 : index
  cf.cond_br %c, ^bb1, ^bb2(%one : f32)
^bb1:
  cf.br ^bb2(%one : f32)
^bb2(%r: f32):
  %r2 = arith.constant 3 : i32
  cf.switch %r2 : i32, [
    default: ^bb3,
    3: ^bb3
  ]
^bb3:
  return %r : f32
}
}
// GOLDEN
// module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
//   func.func @k(%p: tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>> {llvm.align = 16 : i64, llvm.dereferenceable = 24 : i64, xla.invariant, xla.slice_index = 0 : index}, %i: index {xla.range = [0 : index, 3 : index]}, %n: i32, %b: i1, %f: f32, %t1: tensor<16xbf16>, %z: complex<f32>) -> tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>> attributes {xla.entry} {
//     %c0 = arith.constant 0 : index
//     %c1 = arith.constant 1 : index
//     %c4 = arith.constant 4 : index
//     %true = arith.constant true
//     %c-1_i32 = arith.constant -1 : i32
//     %cst = arith.constant 0x7FC00000 : f32
//     %cst_0 = arith.constant 0x7F80 : bf16
//     %cst_1 = arith.constant 3.14159274 : f32
//     %cst_2 = arith.constant 0.33333333333333331 : f64
//     %cst_3 = arith.constant 6.103520e-05 : f16
//     %cst_4 = arith.constant 4.480000e+02 : f8E4M3FN
//     %cst_5 = arith.constant dense<0.000000e+00> : vector<4xbf16>
//     %cst_6 = arith.constant dense<[1, 2, 3]> : tensor<3xi32>
//     %cst_7 = arith.constant dense<[[1.000000e+00, 2.500000e+00], [3.000000e+00, 4.000000e+00]]> : tensor<2x2xf32>
//     %cst_8 = arith.constant -0.000000e+00 : f32
//     %e = tensor.empty() : tensor<4xf32>
//     %x = tensor.extract %p[%c0, %i] : tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>
//     %c = arith.cmpi sge, %i, %c0 : index
//     %cc = arith.cmpf une, %x, %f : f32
//     %r = arith.remf %x, %f : f32
//     %ic = arith.index_castui %i : index to i32
//     %ic2 = arith.index_cast %ic : i32 to index
//     %ov = arith.addi %n, %ic overflow<nsw,nuw> : i32
//     %fm = arith.addf %x, %f fastmath<nsz> : f32
//     %cb = math.cbrt %fm : f32
//     %fma = math.fma %x, %f, %cb : f32
//     %afn = math.exp %x fastmath<afn> : f32
//     %ct = math.ctlz %n : i32
//     %sel = arith.select %c, %x, %f : f32
//     %s8 = arith.extsi %b : i1 to i8
//     %bf = arith.truncf %x : f32 to bf16
//     %re = complex.re %z : complex<f32>
//     %zz = complex.create %re, %x : complex<f32>
//     %zm = complex.mul %zz, %z : complex<f32>
//     %zc = complex.constant [1.000000e+00 : f32, -1.000000e+00 : f32] : complex<f32>
//     %tr = vector.transfer_read %t1[%c0], %bf {in_bounds = [true]} : tensor<16xbf16>, vector<4xbf16>
//     %ve = vector.extract %tr[%i] : bf16 from vector<4xbf16>
//     %ve0 = vector.extract %tr[0] : bf16 from vector<4xbf16>
//     %vi = vector.insert %ve, %tr [%i] : bf16 into vector<4xbf16>
//     %vb = vector.broadcast %bf : bf16 to vector<4xbf16>
//     %tw = vector.transfer_write %vi, %t1[%c0] {in_bounds = [true]} : vector<4xbf16>, tensor<16xbf16>
//     %l:2 = scf.for %iv = %c0 to %c4 step %c1 iter_args(%a = %p, %v = %cst_5) -> (tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>, vector<4xbf16>) {
//       %q = scf.if %c -> (f32) {
//         scf.yield %x : f32
//       } else {
//         scf.yield %f : f32
//       }
//       scf.if %b {
//         gpu.barrier
//       }
//       %ins = tensor.insert %q into %a[%c0, %iv] : tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>
//       scf.yield %ins, %v : tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>, vector<4xbf16>
//     }
//     %sw = scf.index_switch %i -> f32
//     case 0 {
//       scf.yield %x : f32
//     }
//     case 5 {
//       scf.yield %f : f32
//     }
//     default {
//       scf.yield %cb : f32
//     }
//     scf.for %iv = %c0 to %c4 step %c1 {
//       %cw = func.call @g(%iv) : (index) -> f32
//       %sh, %ok = gpu.shuffle  down %cw, %n, %n : f32
//     }
//     %cw2 = call @g(%i) : (index) -> f32
//     %af = affine.apply affine_map<(d0)[s0] -> (((d0 mod 4) + (s0 floordiv 2)))>(%i)[%c4]
//     %d = tensor.dim %t1, %c0 : tensor<16xbf16>
//     return %l#0 : tensor<2x3xf32, dense<[0, 1]> : tensor<2xi64>>
//   }
//   func.func private @g(%i: index) -> f32 {
//     %c0 = arith.constant 0 : index
//     %cst = arith.constant 1.000000e+00 : f32
//     %c = arith.cmpi eq, %i, %c0 : index
//     cf.cond_br %c, ^bb1, ^bb2(%cst : f32)
//   ^bb1:
//     cf.br ^bb2(%cst : f32)
//   ^bb2(%r: f32):
//     %c3_i32 = arith.constant 3 : i32
//     cf.switch %c3_i32 : i32, [
//     default: ^bb3,
//       3: ^bb3
//     ]
//   ^bb3:
//     return %r : f32
//   }
// }
// -----
// RUN:
func.func @f(%v: i32) -> i32 {
  // ERROR: an operand of 'arith.addi' is not defined before it
  %0 = arith.addi %1, %v : i32
  %1 = arith.addi %v, %v : i32
  return %0 : i32
}
// -----
// RUN:
func.func @f(%c: i1, %v: i32) -> i32 {
  cf.cond_br %c, ^a, ^b
^a:
  %0 = arith.addi %v, %v : i32
  cf.br ^b
^b:
  // ERROR: an operand of 'arith.muli' is not defined before it
  %1 = arith.muli %0, %v : i32
  return %1 : i32
}
// -----
// RUN:
func.func @f(%n: index, %v: i32) -> i32 {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  // CHECK: scf.for
  %sum = scf.for %i = %zero to %n step %one iter_args(%s = %v) -> (i32) {
    %0 = arith.addi %s, %v : i32
    scf.yield %0 : i32
  }
  return %sum : i32
}
