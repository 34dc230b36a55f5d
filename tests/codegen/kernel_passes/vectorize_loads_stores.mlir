// RUN: --only=vectorize-loads-stores --twice
// Load and store share the index of the first element. The store collects its elements in a vector that starts as zeros.
// CHECK: func.func @gelu(%input: tensor<12582912xbf16>, %output: tensor<12582912xbf16>)
// CHECK: %[[B:.*]] = xla_gpu.apply_indexing #map(%thread_id_x, %block_id_x, %c0)
// CHECK-NEXT: %[[Z:.*]] = arith.constant 0.000000e+00 : bf16
// CHECK-NEXT: %[[V:.*]] = vector.transfer_read %input[%[[B]]], %[[Z]] {in_bounds = [true]} : tensor<12582912xbf16>, vector<4xbf16>
// CHECK-NEXT: %[[W:.*]] = arith.constant dense<0.000000e+00> : vector<4xbf16>
// CHECK-NEXT: %xla_loop:2 = scf.for %vector_index = %c0 to %c4 step %c1 iter_args(%iter = %output, %[[U:.*]] = %[[W]]) -> (tensor<12582912xbf16>, vector<4xbf16>) {
// CHECK-NEXT: %[[X:.*]] = vector.extract %[[V]][%vector_index] : bf16 from vector<4xbf16>
// CHECK-NEXT: %[[Y:.*]] = math.tanh %[[X]] : bf16
// CHECK-NEXT: %[[R:.*]] = vector.insert %[[Y]], %[[U]] [%vector_index] : bf16 into vector<4xbf16>
// CHECK-NEXT: scf.yield %iter, %[[R]] : tensor<12582912xbf16>, vector<4xbf16>
// CHECK-NEXT: }
// CHECK-NEXT: %[[S:.*]] = vector.transfer_write %xla_loop#1, %output[%[[B]]] {in_bounds = [true]} : vector<4xbf16>, tensor<12582912xbf16>
// CHECK-NEXT: return %[[S]]
#map = #xla_gpu.indexing_map<"(th_x, bl_x, vector_index) -> (th_x * 4 + bl_x * 512 + vector_index), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
func.func @gelu(%input: tensor<12582912xbf16>, %output: tensor<12582912xbf16>) -> tensor<12582912xbf16> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
  %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}
  %xla_loop = scf.for %vector_index = %c0 to %c4 step %c1 iter_args(%iter = %output) -> (tensor<12582912xbf16>) {
    %dim = xla_gpu.apply_indexing #map(%thread_id_x, %block_id_x, %vector_index)
    %extracted = tensor.extract %input[%dim] : tensor<12582912xbf16>
    %0 = math.tanh %extracted : bf16
    %inserted = tensor.insert %0 into %iter[%dim] : tensor<12582912xbf16>
    scf.yield %inserted : tensor<12582912xbf16>
  }
  return %xla_loop : tensor<12582912xbf16>
}
// -----
// RUN: --only=vectorize-loads-stores --twice
// The induction variable itself; two outputs, written in program order; the first also feeds a reduction.
// CHECK: %[[V:.*]] = vector.transfer_read %in[%c0]
// CHECK: %r:5 = scf.for %i = %c0 to %c2 step %c1 iter_args(%t = %a, %u = %b, %acc = %init, %[[A:.*]] = %{{.*}}, %[[B:.*]] = %{{.*}})
// CHECK: scf.yield %t, %u, %sum, %{{.*}}, %{{.*}} : tensor<8xf32>, tensor<8xi32>, f32, vector<2xf32>, vector<2xi32>
// CHECK: %[[S:.*]] = vector.transfer_write %r#3, %a[%c0] {in_bounds = [true]} : vector<2xf32>, tensor<8xf32>
// CHECK-NEXT: %[[T:.*]] = vector.transfer_write %r#4, %b[%c0] {in_bounds = [true]} : vector<2xi32>, tensor<8xi32>
// CHECK-NEXT: return %[[S]], %[[T]], %r#2
func.func @two_outputs(%in: tensor<8xf32>, %a: tensor<8xf32>, %b: tensor<8xi32>, %init: f32) -> (tensor<8xf32>, tensor<8xi32>, f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %r:3 = scf.for %i = %c0 to %c2 step %c1 iter_args(%t = %a, %u = %b, %acc = %init) -> (tensor<8xf32>, tensor<8xi32>, f32) {
    %x = tensor.extract %in[%i] : tensor<8xf32>
    %y = math.exp %x : f32
    %k = arith.fptosi %x : f32 to i32
    %p = tensor.insert %y into %t[%i] : tensor<8xf32>
    %q = tensor.insert %k into %u[%i] : tensor<8xi32>
    %sum = arith.addf %acc, %y : f32
    scf.yield %p, %q, %sum : tensor<8xf32>, tensor<8xi32>, f32
  }
  return %r#0, %r#1, %r#2 : tensor<8xf32>, tensor<8xi32>, f32
}
// -----
// RUN: --only=vectorize-loads-stores
// A loop that only copies writes the vector that it read.
// CHECK: %[[V:.*]] = vector.transfer_read %in[%c0]
// CHECK: scf.yield %t, %[[V]] : tensor<8xf32>, vector<4xf32>
// CHECK: vector.transfer_write %r#1, %out[%c0]
// CHECK-NOT: vector.insert
func.func @copy(%in: tensor<8xf32>, %out: tensor<8xf32>) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%t = %out) -> (tensor<8xf32>) {
    %x = tensor.extract %in[%i] : tensor<8xf32>
    %p = tensor.insert %x into %t[%i] : tensor<8xf32>
    scf.yield %p : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}
// -----
// RUN: --only=vectorize-loads-stores
// Only the inner loop accesses neighbours: its load moves before it, into the body of the outer loop.
// CHECK: scf.for %i = %c0 to %c4 step %c1
// CHECK-NEXT: %[[B:.*]] = xla_gpu.apply_indexing #map(%th, %i, %c0)
// CHECK-NEXT: arith.constant 0.0
// CHECK-NEXT: vector.transfer_read %in[%[[B]]], %{{.*}} : tensor<4096xf32>, vector<2xf32>
// CHECK-NEXT: scf.for %j = %c0 to %c2 step %c1
// CHECK-NEXT: vector.extract
#map = #xla_gpu.indexing_map<"(d0, d1, d2) -> ((d0 mod 32) * 2 + d1 * 64 + d2), domain: d0 in [0, 63], d1 in [0, 3], d2 in [0, 1]">
func.func @rows(%in: tensor<4096xf32>, %th: index, %init: f32) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %init) -> (f32) {
    %s = scf.for %j = %c0 to %c2 step %c1 iter_args(%b = %a) -> (f32) {
      %k = xla_gpu.apply_indexing #map(%th, %i, %j)
      %x = tensor.extract %in[%k] : tensor<4096xf32>
      %y = arith.addf %b, %x : f32
      scf.yield %y : f32
    }
    scf.yield %s : f32
  }
  return %r : f32
}
// -----
// RUN: --only=vectorize-loads-stores --twice
// Indices that do not qualify: stride two; an odd start; an unknown start; growth inside a mod; the induction variable
// twice in the operands; an operand from inside of the loop.
// CHECK-NOT: vector.
// CHECK-COUNT-6: tensor.extract
// CHECK-NOT: vector.
#by_two = #xla_gpu.indexing_map<"(d0, d1) -> (d0 * 4 + d1 * 2), domain: d0 in [0, 63], d1 in [0, 1]">
#odd = #xla_gpu.indexing_map<"(d0, d1) -> (d0 * 4 + d1 + 1), domain: d0 in [0, 63], d1 in [0, 1]">
#anywhere = #xla_gpu.indexing_map<"(d0, d1) -> (d0 + d1), domain: d0 in [0, 63], d1 in [0, 1]">
#wraps = #xla_gpu.indexing_map<"(d0, d1) -> ((d0 * 2 + d1) mod 64), domain: d0 in [0, 63], d1 in [0, 1]">
#twice = #xla_gpu.indexing_map<"(d0, d1) -> (d0 * 4 + d1), domain: d0 in [0, 63], d1 in [0, 1]">
func.func @index_misses(%in: tensor<4096xf32>, %th: index, %init: f32) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %r = scf.for %i = %c0 to %c2 step %c1 iter_args(%a = %init) -> (f32) {
    %inside = arith.addi %i, %th : index
    %k0 = xla_gpu.apply_indexing #by_two(%th, %i)
    %k1 = xla_gpu.apply_indexing #odd(%th, %i)
    %k2 = xla_gpu.apply_indexing #anywhere(%th, %i)
    %k3 = xla_gpu.apply_indexing #wraps(%th, %i)
    %k4 = xla_gpu.apply_indexing #twice(%i, %i)
    %k5 = xla_gpu.apply_indexing #twice(%inside, %i)
    %x0 = tensor.extract %in[%k0] : tensor<4096xf32>
    %x1 = tensor.extract %in[%k1] : tensor<4096xf32>
    %x2 = tensor.extract %in[%k2] : tensor<4096xf32>
    %x3 = tensor.extract %in[%k3] : tensor<4096xf32>
    %x4 = tensor.extract %in[%k4] : tensor<4096xf32>
    %x5 = tensor.extract %in[%k5] : tensor<4096xf32>
    %s0 = arith.addf %a, %x0 : f32
    %s1 = arith.addf %s0, %x1 : f32
    %s2 = arith.addf %s1, %x2 : f32
    %s3 = arith.addf %s2, %x3 : f32
    %s4 = arith.addf %s3, %x4 : f32
    %s5 = arith.addf %s4, %x5 : f32
    scf.yield %s5 : f32
  }
  return %r : f32
}
// -----
// RUN: --only=vectorize-loads-stores
// Types and loops that do not qualify: a length that 4 does not divide, complex numbers, more than 256 bits, three steps,
// an scf.if between loop and access.
// CHECK-NOT: vector.
// CHECK-COUNT-6: tensor.extract
// CHECK-NOT: vector.
func.func @type_misses(%odd: tensor<10xf32>, %c: tensor<8xcomplex<f32>>, %d: tensor<8xf64>, %in: tensor<12xf32>, %p: i1, %z: f32, %w: complex<f32>, %y: f64) -> (f32, complex<f32>, f64, f32, f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %0:2 = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %z, %b = %w) -> (f32, complex<f32>) {
    %x = tensor.extract %odd[%i] : tensor<10xf32>
    %u = tensor.extract %c[%i] : tensor<8xcomplex<f32>>
    scf.yield %x, %u : f32, complex<f32>
  }
  %1 = scf.for %i = %c0 to %c8 step %c1 iter_args(%a = %y) -> (f64) {
    %x = tensor.extract %d[%i] : tensor<8xf64>
    scf.yield %x : f64
  }
  %2 = scf.for %i = %c0 to %c3 step %c1 iter_args(%a = %z) -> (f32) {
    %x = tensor.extract %in[%i] : tensor<12xf32>
    scf.yield %x : f32
  }
  %3 = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %z) -> (f32) {
    %s = scf.if %p -> (f32) {
      %x = tensor.extract %in[%i] : tensor<12xf32>
      scf.yield %x : f32
    } else {
      %x = tensor.extract %in[%c0] : tensor<12xf32>
      scf.yield %x : f32
    }
    scf.yield %s : f32
  }
  return %0#0, %0#1, %1, %2, %3 : f32, complex<f32>, f64, f32, f32
}
// -----
// RUN: --only=vectorize-loads-stores
// Aliases that do not qualify: a load from a tensor that the loop writes, a store to a buffer that the step also reads.
// CHECK-NOT: vector.
// CHECK: tensor.extract %t[%i]
// CHECK: tensor.insert %{{.*}} into %t[%i]
// CHECK-NOT: vector.
func.func @in_place(%out: tensor<8xf32>) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%t = %out) -> (tensor<8xf32>) {
    %x = tensor.extract %t[%i] : tensor<8xf32>
    %y = math.exp %x : f32
    %p = tensor.insert %y into %t[%i] : tensor<8xf32>
    scf.yield %p : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}
// -----
// RUN: --only=vectorize-loads-stores
// Atomic additions of f32 collect their addends and become one atomic addition of a vector.
// CHECK: %[[B:.*]] = xla_gpu.apply_indexing #map(%th, %c0)
// CHECK: %r:2 = scf.for
// CHECK-NOT: atomic_rmw
// CHECK: }
// CHECK: %[[A:.*]] = xla_gpu.atomic_rmw %out[%[[B]]] : tensor<4096xf32> {
// CHECK-NEXT: ^{{.*}}(%[[C:.*]]: vector<4xf32>):
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[C]], %r#1 : vector<4xf32>
// CHECK-NEXT: xla_gpu.yield %[[S]] : vector<4xf32>
// CHECK-NEXT: }
// CHECK-NEXT: return %[[A]]
#map = #xla_gpu.indexing_map<"(d0, d1) -> (d0 * 4 + d1), domain: d0 in [0, 63], d1 in [0, 3]">
func.func @atomic(%in: tensor<8xf32>, %out: tensor<4096xf32>, %th: index) -> tensor<4096xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%t = %out) -> (tensor<4096xf32>) {
    %k = xla_gpu.apply_indexing #map(%th, %i)
    %x = tensor.extract %in[%i] : tensor<8xf32>
    %p = xla_gpu.atomic_rmw %t[%k] : tensor<4096xf32> {
    ^bb0(%current: f32):
      %sum = arith.addf %current, %x : f32
      xla_gpu.yield %sum : f32
    }
    scf.yield %p : tensor<4096xf32>
  }
  return %r : tensor<4096xf32>
}
// -----
// RUN: --only=vectorize-loads-stores{sm=80}
// GPUs before Hopper have no vector atomics: only the load is vectorised.
// CHECK: vector.transfer_read
// CHECK: scf.for
// CHECK: xla_gpu.atomic_rmw %t[%k]
func.func @older(%in: tensor<8xf32>, %out: tensor<4096xf32>, %th: index) -> tensor<4096xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%t = %out) -> (tensor<4096xf32>) {
    %k = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0, d1) -> (d0 * 4 + d1), domain: d0 in [0, 63], d1 in [0, 3]">(%th, %i)
    %x = tensor.extract %in[%i] : tensor<8xf32>
    %p = xla_gpu.atomic_rmw %t[%k] : tensor<4096xf32> {
    ^bb0(%current: f32):
      %sum = arith.addf %current, %x : f32
      xla_gpu.yield %sum : f32
    }
    scf.yield %p : tensor<4096xf32>
  }
  return %r : tensor<4096xf32>
}
// -----
// RUN: --only=vectorize-loads-stores
// Atomics that do not qualify: a maximum, and f64.
// CHECK-COUNT-2: xla_gpu.atomic_rmw %{{t|u}}[%i]
// CHECK-NOT: xla_gpu.atomic_rmw
func.func @other_atomics(%x: f32, %y: f64, %out: tensor<8xf32>, %wide: tensor<8xf64>) -> (tensor<8xf32>, tensor<8xf64>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r:2 = scf.for %i = %c0 to %c4 step %c1 iter_args(%t = %out, %u = %wide) -> (tensor<8xf32>, tensor<8xf64>) {
    %p = xla_gpu.atomic_rmw %t[%i] : tensor<8xf32> {
    ^bb0(%current: f32):
      %top = arith.maximumf %current, %x : f32
      xla_gpu.yield %top : f32
    }
    %q = xla_gpu.atomic_rmw %u[%i] : tensor<8xf64> {
    ^bb0(%current: f64):
      %sum = arith.addf %current, %y : f64
      xla_gpu.yield %sum : f64
    }
    scf.yield %p, %q : tensor<8xf32>, tensor<8xf64>
  }
  return %r#0, %r#1 : tensor<8xf32>, tensor<8xf64>
}
