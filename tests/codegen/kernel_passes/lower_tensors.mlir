// RUN: --only=lower-tensors
// Arguments, loads and stores; the index has the module's width; the kernel returns nothing.
module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
  func.func @kernel(%in: tensor<64xf32> {xla.invariant, xla.slice_index = 0 : index}, %out: tensor<64xf32> {xla.slice_index = 1 : index}, %s: tensor<f64>) -> tensor<64xf32> attributes {xla.entry} {
    %i = gpu.thread_id  x {xla.range = [0 : index, 63 : index]}
    %c3 = arith.constant 3 : index
    %x = tensor.extract %in[%i] : tensor<64xf32>
    %y = tensor.extract %out[%c3] : tensor<64xf32>
    %z = tensor.extract %s[] : tensor<f64>
    %r = tensor.insert %x into %out[%i] : tensor<64xf32>
    %q = tensor.insert %y into %r[%i] : tensor<64xf32>
    return %q : tensor<64xf32>
  }
}
// CHECK: func.func @kernel(%in: !llvm.ptr {xla.invariant, xla.slice_index = 0 : index}, %out: !llvm.ptr {xla.slice_index = 1 : index}, %s: !llvm.ptr) attributes {xla.entry} {
// CHECK: %i = gpu.thread_id x
// CHECK: [[I:%[0-9]+]] = arith.index_castui %i : index to i32
// CHECK-NEXT: [[P:%[0-9]+]] = llvm.getelementptr inbounds %in[[[I]]] : (!llvm.ptr, i32) -> !llvm.ptr, f32
// CHECK-NEXT: %x = llvm.load [[P]] invariant : !llvm.ptr -> f32
// CHECK: llvm.getelementptr inbounds %out[%c3_i32]
// CHECK-NEXT: %y = llvm.load {{%[0-9]+}} : !llvm.ptr -> f32
// CHECK-NEXT: %z = llvm.load %s : !llvm.ptr -> f64
// CHECK: llvm.store %x
// CHECK: llvm.getelementptr inbounds %out
// CHECK-NEXT: llvm.store %y
// CHECK-NEXT: return{{$}}
// CHECK-NOT: tensor
// -----
// RUN: --only=lower-tensors
// The default width of index is 64 bits.
func.func @kernel(%in: tensor<64xf16>, %i: index) -> f16 {
  %x = tensor.extract %in[%i] : tensor<64xf16>
  return %x : f16
}
// CHECK: arith.index_castui %i : index to i64
// CHECK: return %x : f16
// -----
// RUN: --only=lower-tensors
// Vector accesses have the alignment of one element, or of the argument if the index is the constant 0.
func.func @kernel(%in: tensor<64xbf16> {llvm.align = 16 : index}, %out: tensor<64xf32>, %i: index) -> tensor<64xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : bf16
  %v = vector.transfer_read %in[%i], %zero {in_bounds = [true]} : tensor<64xbf16>, vector<4xbf16>
  %w = vector.transfer_read %in[%c0], %zero {in_bounds = [true]} : tensor<64xbf16>, vector<4xbf16>
  %y = arith.extf %v : vector<4xbf16> to vector<4xf32>
  %r = vector.transfer_write %y, %out[%i] {in_bounds = [true]} : vector<4xf32>, tensor<64xf32>
  return %r : tensor<64xf32>
}
// CHECK: %v = llvm.load {{%[0-9]+}} {alignment = 2 : i64} : !llvm.ptr -> vector<4xbf16>
// CHECK: %w = llvm.load {{%[0-9]+}} {alignment = 16 : i64} : !llvm.ptr -> vector<4xbf16>
// CHECK: llvm.store %y, {{%[0-9]+}} {alignment = 4 : i64} : vector<4xf32>, !llvm.ptr
// -----
// RUN: --only=lower-tensors
// Shared tiles, one barrier for two of them, array constants: globals before the functions.
func.func @kernel(%i: index) -> f32 {
  %a = xla_gpu.allocate_shared : tensor<1056xf32>
  %b = xla_gpu.allocate_shared : tensor<8xi8>
  %one = arith.constant 1.0 : f32
  %f = tensor.insert %one into %a[%i] : tensor<1056xf32>
  %s:2 = xla_gpu.sync_threads %f, %b : tensor<1056xf32>, tensor<8xi8>
  %cst = arith.constant dense<[1, 2, 3]> : tensor<3xi16>
  %n = tensor.extract %cst[%i] : tensor<3xi16>
  %x = tensor.extract %s#0[%i] : tensor<1056xf32>
  return %x : f32
}
// CHECK: llvm.mlir.global private @shared_0() {addr_space = 3 : i32} : !llvm.array<1056 x f32>
// CHECK-NEXT: llvm.mlir.global private @shared_1() {addr_space = 3 : i32, alignment = 4 : i64} : !llvm.array<8 x i8>
// CHECK-NEXT: llvm.mlir.global private constant @global_cst_0(dense<[1, 2, 3]> : tensor<3xi16>) {addr_space = 0 : i32} : !llvm.array<3 x i16>
// CHECK: [[S:%[0-9]+]] = llvm.mlir.addressof @shared_0 : !llvm.ptr<3>
// CHECK-NEXT: [[A:%[0-9]+]] = llvm.addrspacecast [[S]] : !llvm.ptr<3> to !llvm.ptr
// CHECK: llvm.getelementptr inbounds [[A]]
// CHECK: gpu.barrier
// CHECK-NEXT: [[C:%[0-9]+]] = llvm.mlir.addressof @global_cst_0 : !llvm.ptr
// CHECK: llvm.getelementptr inbounds [[C]]
// CHECK-SAME: i16
// CHECK: llvm.getelementptr inbounds [[A]]
// -----
// RUN: --only=lower-tensors
// Buffers are removed from the results of loops and branches; scalars stay.
func.func @kernel(%out: tensor<64xf32>, %c: i1, %n: index, %x: f32) -> tensor<64xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r:3 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %x, %t = %out, %b = %x) -> (f32, tensor<64xf32>, f32) {
    %s, %y = scf.if %c -> (tensor<64xf32>, f32) {
      %u = tensor.insert %a into %t[%i] : tensor<64xf32>
      scf.yield %u, %a : tensor<64xf32>, f32
    } else {
      scf.yield %t, %b : tensor<64xf32>, f32
    }
    scf.yield %b, %s, %y : f32, tensor<64xf32>, f32
  }
  %q = tensor.insert %r#2 into %r#1[%c0] : tensor<64xf32>
  return %q : tensor<64xf32>
}
// CHECK: [[R:%[a-z0-9]+]]:2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %x, %b = %x) -> (f32, f32) {
// CHECK-NEXT: %y = scf.if %c -> (f32) {
// CHECK: llvm.getelementptr inbounds %out
// CHECK-NEXT: llvm.store %a
// CHECK-NEXT: scf.yield %a : f32
// CHECK-NEXT: } else {
// CHECK-NEXT: scf.yield %b : f32
// CHECK-NEXT: }
// CHECK-NEXT: scf.yield %b, %y : f32, f32
// CHECK: llvm.store [[R]]#1
// -----
// RUN: --only=lower-tensors
// Branches that yield different buffers return a pointer, and so does a select; for equal buffers the result is the buffer.
func.func @kernel(%p: tensor<8xf32>, %q: tensor<8xf32>, %c: i1, %i: index) -> f32 {
  %b = scf.if %c -> (tensor<8xf32>) {
    scf.yield %p : tensor<8xf32>
  } else {
    scf.yield %q : tensor<8xf32>
  }
  %x = tensor.extract %b[%i] : tensor<8xf32>
  %d = arith.select %c, %q, %p : tensor<8xf32>
  %y = tensor.extract %d[%i] : tensor<8xf32>
  %e = arith.select %c, %q, %q : tensor<8xf32>
  %z = tensor.extract %e[%i] : tensor<8xf32>
  %s = arith.addf %x, %y : f32
  %t = arith.addf %s, %z : f32
  return %t : f32
}
// CHECK: [[B:%[0-9]+]] = scf.if %c -> (!llvm.ptr) {
// CHECK-NEXT: scf.yield %p : !llvm.ptr
// CHECK: llvm.getelementptr inbounds [[B]]
// CHECK: [[D:%[0-9]+]] = arith.select %c, %q, %p : !llvm.ptr
// CHECK: llvm.getelementptr inbounds [[D]]
// CHECK: llvm.getelementptr inbounds %q
// -----
// RUN: --only=lower-tensors
// A switch over output groups.
func.func @kernel(%out: tensor<8xf32>, %i: index, %x: f32) -> tensor<8xf32> {
  %r = scf.index_switch %i -> tensor<8xf32>
  case 1 {
    %a = tensor.insert %x into %out[%i] : tensor<8xf32>
    scf.yield %a : tensor<8xf32>
  }
  default {
    scf.yield %out : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}
// CHECK: scf.index_switch %i
// CHECK-NOT: tensor
// CHECK: llvm.store %x
// CHECK: return{{$}}
// -----
// RUN: --only=lower-tensors
// Calls pass pointers; the callee's loads are invariant if its argument is.
func.func @kernel(%in: tensor<8xi32> {xla.invariant}, %i: index) -> i32 {
  %x = func.call @sub(%in, %i) : (tensor<8xi32>, index) -> i32
  return %x : i32
}
func.func private @sub(%in: tensor<8xi32> {xla.invariant}, %i: index) -> i32 {
  %x = tensor.extract %in[%i] : tensor<8xi32>
  return %x : i32
}
// CHECK: %x = call @sub(%in, %i) : (!llvm.ptr, index) -> i32
// CHECK: func.func private @sub(%in: !llvm.ptr {xla.invariant}, %i: index) -> i32
// CHECK: llvm.load {{%[0-9]+}} invariant : !llvm.ptr -> i32
// -----
// RUN: --only=lower-tensors
// Eight-bit floats are bytes in memory.
func.func @kernel(%in: tensor<8xf8E4M3FN>, %i: index) -> tensor<8xf8E4M3FN> {
  %x = tensor.extract %in[%i] : tensor<8xf8E4M3FN>
  %r = tensor.insert %x into %in[%i] : tensor<8xf8E4M3FN>
  return %r : tensor<8xf8E4M3FN>
}
// CHECK: [[B:%[a-z0-9]+]] = llvm.load {{%[0-9]+}} : !llvm.ptr -> i8
// CHECK-NEXT: [[F:%[a-z0-9_]+]] = arith.bitcast [[B]] : i8 to f8E4M3FN
// CHECK: [[C:%[a-z0-9]+]] = arith.bitcast [[F]] : f8E4M3FN to i8
// CHECK: llvm.store [[C]]
// -----
// RUN: --only=lower-tensors
func.func @kernel(%in: tensor<8xi4>, %i: index) -> i4 {
  %x = tensor.extract %in[%i] : tensor<8xi4>
  return %x : i4
}
// A byte holds two: the low bits are the first of them.
// CHECK: [[I:%[0-9]+]] = arith.index_castui %i : index to i64
// CHECK: [[BYTE:%[0-9]+]] = arith.shrui [[I]], %c1_i64
// CHECK: [[FIRST:%[0-9]+]] = arith.muli {{%[0-9]+}}, %c4_i64
// CHECK: [[P:%[0-9]+]] = llvm.getelementptr inbounds %in[[[BYTE]]] : (!llvm.ptr, i64) -> !llvm.ptr, i8
// CHECK: [[S:%[0-9]+]] = arith.trunci [[FIRST]] : i64 to i8
// CHECK: [[B:%[0-9]+]] = llvm.load [[P]] : !llvm.ptr -> i8
// CHECK: [[V:%[0-9]+]] = arith.shrui [[B]], [[S]] : i8
// CHECK: %x = arith.trunci [[V]] : i8 to i4
// -----
// RUN: --only=lower-tensors
func.func @kernel(%out: tensor<8xi4>, %i: index, %x: i4) -> tensor<8xi4> {
  %r = tensor.insert %x into %out[%i] : tensor<8xi4>
  return %r : tensor<8xi4>
}
// The other half of the byte may belong to another thread.
// CHECK: [[MASK:%[0-9]+]] = arith.shli %c15_i8, [[S:%[0-9]+]] : i8
// CHECK: [[OTHERS:%[0-9]+]] = arith.xori [[MASK]], %c-1_i8
// CHECK: llvm.atomicrmw _and [[P:%[0-9]+]], [[OTHERS]] monotonic : !llvm.ptr, i8
// CHECK: [[W:%[0-9]+]] = arith.extui %x : i4 to i8
// CHECK: [[U:%[0-9]+]] = arith.shli [[W]], [[S]] : i8
// CHECK: llvm.atomicrmw _or [[P]], [[U]] monotonic : !llvm.ptr, i8
// -----
// RUN: --only=lower-tensors
func.func @kernel(%in: tensor<8xcomplex<f32>>, %out: tensor<8xcomplex<f32>>, %i: index) -> tensor<8xcomplex<f32>> {
  %x = tensor.extract %in[%i] : tensor<8xcomplex<f32>>
  %r = tensor.insert %x into %out[%i] : tensor<8xcomplex<f32>>
  return %r : tensor<8xcomplex<f32>>
}
// CHECK: [[L:%[a-z0-9_]+]] = llvm.load {{%[a-z0-9_]+}} : !llvm.ptr -> !llvm.struct<(f32, f32)>
// CHECK: llvm.extractvalue [[L]][0]
// CHECK: llvm.extractvalue [[L]][1]
// CHECK: [[Z:%[a-z0-9_]+]] = complex.create
// CHECK: complex.re [[Z]]
// CHECK: llvm.insertvalue
// CHECK: complex.im [[Z]]
// CHECK: [[V:%[a-z0-9_]+]] = llvm.insertvalue
// CHECK: llvm.store [[V]], {{%[a-z0-9_]+}}
// -----
// RUN: --only=lower-tensors
func.func @kernel(%out: tensor<8xf32>, %i: index, %x: f32) -> tensor<8xf32> {
  %r = xla_gpu.atomic_rmw %out[%i] : tensor<8xf32> {
  ^bb0(%old: f32):
    %s = arith.addf %old, %x : f32
    xla_gpu.yield %s : f32
  }
  return %r : tensor<8xf32>
}
// CHECK: [[P:%[a-z0-9_]+]] = llvm.getelementptr inbounds %out[{{%[a-z0-9_]+}}]
// CHECK-NEXT: llvm.atomicrmw fadd [[P]], %x monotonic : !llvm.ptr, f32
// CHECK-NEXT: return
// -----
// RUN: --only=lower-tensors
func.func @kernel(%out: tensor<8xi32>, %i: index, %x: i32) -> tensor<8xi32> {
  %r = xla_gpu.atomic_rmw %out[%i] : tensor<8xi32> {
  ^bb0(%old: i32):
    %s = arith.maxui %old, %x : i32
    xla_gpu.yield %s : i32
  }
  return %r : tensor<8xi32>
}
// CHECK: llvm.atomicrmw umax {{%[a-z0-9_]+}}, %x monotonic : !llvm.ptr, i32
// CHECK-NOT: scf.while
// -----
// Updates without an atomic instruction are retried until no other thread interferes.
// RUN: --only=lower-tensors
func.func @kernel(%out: tensor<8xf32>, %i: index, %x: f32) -> tensor<8xf32> {
  %r = xla_gpu.atomic_rmw %out[%i] : tensor<8xf32> {
  ^bb0(%old: f32):
    %s = arith.mulf %old, %x : f32
    xla_gpu.yield %s : f32
  }
  return %r : tensor<8xf32>
}
// CHECK: [[P:%[a-z0-9_]+]] = llvm.getelementptr inbounds %out[{{%[a-z0-9_]+}}]
// CHECK-NEXT: [[V:%[a-z0-9_]+]] = llvm.load [[P]] : !llvm.ptr -> i32
// CHECK-NEXT: scf.while ([[A:%[a-z0-9_]+]] = [[V]]) : (i32) -> i32 {
// CHECK-NEXT: %old = arith.bitcast [[A]] : i32 to f32
// CHECK-NEXT: %s = arith.mulf %old, %x : f32
// CHECK-NEXT: [[N:%[a-z0-9_]+]] = arith.bitcast %s : f32 to i32
// CHECK-NEXT: [[E:%[a-z0-9_]+]] = llvm.cmpxchg [[P]], [[A]], [[N]] monotonic monotonic : !llvm.ptr, i32
// CHECK: [[WAS:%[a-z0-9_]+]] = llvm.extractvalue [[E]][0]
// CHECK: [[OK:%[a-z0-9_]+]] = llvm.extractvalue [[E]][1]
// CHECK: [[AGAIN:%[a-z0-9_]+]] = arith.xori [[OK]], %true : i1
// CHECK: scf.condition([[AGAIN]]) [[WAS]] : i32
// -----
// RUN: --only=lower-tensors --print_locations
// New ops have the HLO instruction of the op that they replace.
func.func @kernel(%in: tensor<8xf32>, %i: index) -> f32 {
  %x = tensor.extract %in[%i] {hlo.op = "param"} : tensor<8xf32>
  return %x : f32
}
// CHECK: llvm.getelementptr inbounds %in[{{%[a-z0-9_]+}}] {hlo.op = "param"}
// CHECK-NEXT: %x = llvm.load {{%[a-z0-9_]+}} {hlo.op = "param"}
// -----
// RUN: --only=lower-tensors
// An element of 16 bits: the word around it is compared and swapped, so that updates of its neighbour are not lost.
func.func @kernel(%out: tensor<8xf16>, %i: index, %x: f16) -> tensor<8xf16> {
  %r = xla_gpu.atomic_rmw %out[%i] : tensor<8xf16> {
  ^bb0(%old: f16):
    %s = arith.mulf %old, %x : f16
    xla_gpu.yield %s : f16
  }
  return %r : tensor<8xf16>
}
// CHECK: [[P:%[a-z0-9_]+]] = llvm.getelementptr inbounds %out
// CHECK: [[A:%[a-z0-9_]+]] = {{.*}}llvm.ptrtoint{{.*}}[[P]]
// CHECK: [[IN:%[a-z0-9_]+]] = arith.andi [[A]], {{%[a-z0-9_]+}} : i64
// CHECK: [[BACK:%[a-z0-9_]+]] = arith.subi {{%[a-z0-9_]+}}, [[IN]] : i64
// CHECK: [[W:%[a-z0-9_]+]] = llvm.getelementptr inbounds [[P]][[[BACK]]]
// CHECK: llvm.load [[W]]
// CHECK: scf.while ([[OLD:%[a-z0-9_]+]] = {{%[a-z0-9_]+}}) : (i32) -> i32 {
// CHECK: arith.shrui [[OLD]]
// CHECK: arith.trunci {{%[a-z0-9_]+}} : i32 to i16
// CHECK: arith.bitcast {{%[a-z0-9_]+}} : i16 to f16
// CHECK: llvm.cmpxchg [[W]], [[OLD]], {{%[a-z0-9_]+}} monotonic monotonic : !llvm.ptr, i32
