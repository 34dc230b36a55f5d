// RUN: --only=optimize-loops --twice
// Four steps are unrolled completely. Positions stay index values; 0 and 1 are the constants of the loop's bounds.
// CHECK-NOT: scf.for
// CHECK: %c2 = arith.constant 2 : index
// CHECK-NEXT: %c3 = arith.constant 3 : index
// CHECK-NEXT: %[[A:.*]] = vector.extract %v[%c0] : f32 from vector<4xf32>
// CHECK-NEXT: %[[B:.*]] = arith.addf %init, %[[A]]
// CHECK-NEXT: %[[C:.*]] = vector.extract %v[%c1]
// CHECK-NEXT: %[[D:.*]] = arith.addf %[[B]], %[[C]]
// CHECK-NEXT: %[[E:.*]] = vector.extract %v[%c2]
// CHECK-NEXT: %[[F:.*]] = arith.addf %[[D]], %[[E]]
// CHECK-NEXT: %[[G:.*]] = vector.extract %v[%c3]
// CHECK-NEXT: %[[H:.*]] = arith.addf %[[F]], %[[G]]
// CHECK-NEXT: return %[[H]]
func.func @whole(%v: vector<4xf32>, %init: f32) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%acc = %init) -> (f32) {
    %0 = vector.extract %v[%i] : f32 from vector<4xf32>
    %1 = arith.addf %acc, %0 : f32
    scf.yield %1 : f32
  }
  return %r : f32
}
// -----
// RUN: --only=optimize-loops
// 12 steps of about 60 operations: 400 / 60 is 6, which divides 12. Each copy takes the values of the copy before.
// CHECK: %[[STEP:c6]] = arith.constant 6 : index
// CHECK: scf.for %i = %c0 to %c12 step %c6 iter_args(%acc = %init) -> (f32) {
// CHECK-NEXT: %[[A:.*]] = math.exp %acc
// CHECK-NEXT: %[[B:.*]] = math.log %[[A]]
// CHECK-NEXT: %[[C:.*]] = math.tanh %[[B]]
// CHECK-NEXT: %[[D:.*]] = arith.addi %i, %c1 : index
// CHECK-NEXT: %[[E:.*]] = math.exp %[[C]]
// CHECK-COUNT-5: math.tanh
// CHECK-NEXT: scf.yield
// CHECK-NOT: math.tanh
func.func @part(%init: f32) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c12 = arith.constant 12 : index
  %r = scf.for %i = %c0 to %c12 step %c1 iter_args(%acc = %init) -> (f32) {
    %0 = math.exp %acc : f32
    %1 = math.log %0 : f32
    %2 = math.tanh %1 : f32
    scf.yield %2 : f32
  }
  return %r : f32
}
// -----
// RUN: --only=optimize-loops{max_unroll_factor=12}
// With the unroll factor of the loop emitter as large as the loop, the size does not matter.
// CHECK-NOT: scf.for
// CHECK-COUNT-12: math.tanh
// CHECK-NOT: math.tanh
func.func @by_option(%init: f32) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c12 = arith.constant 12 : index
  %r = scf.for %i = %c0 to %c12 step %c1 iter_args(%acc = %init) -> (f32) {
    %0 = math.exp %acc : f32
    %1 = math.log %0 : f32
    %2 = math.tanh %1 : f32
    scf.yield %2 : f32
  }
  return %r : f32
}
// -----
// RUN: --only=optimize-loops --twice
// The inner loop is unrolled first, then the outer loop, which contains no loop then. Eight copies in order.
// CHECK-NOT: scf.for
// CHECK: xla_gpu.apply_indexing #map(%c0, %c0)
// CHECK: xla_gpu.apply_indexing #map(%c0, %c1)
// CHECK: xla_gpu.apply_indexing #map(%c1, %c0)
// CHECK: xla_gpu.apply_indexing #map(%c1, %c1)
// CHECK: xla_gpu.apply_indexing #map(%c2, %c0)
// CHECK: xla_gpu.apply_indexing #map(%c2, %c1)
// CHECK: xla_gpu.apply_indexing #map(%c3, %c0)
// CHECK: xla_gpu.apply_indexing #map(%c3, %c1)
// CHECK-NOT: apply_indexing
#map = #xla_gpu.indexing_map<"(d0, d1) -> (d0 * 2 + d1), domain: d0 in [0, 3], d1 in [0, 1]">
func.func @nest(%t: tensor<8xf32>, %init: f32) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %init) -> (f32) {
    %s = scf.for %j = %c0 to %c2 step %c1 iter_args(%b = %a) -> (f32) {
      %k = xla_gpu.apply_indexing #map(%i, %j)
      %x = tensor.extract %t[%k] : tensor<8xf32>
      %y = arith.addf %b, %x : f32
      scf.yield %y : f32
    }
    scf.yield %s : f32
  }
  return %r : f32
}
// -----
// RUN: --only=optimize-loops --twice
// Not unrolled: a call, a long function, a step of 2, a lower bound of 1, a prime number of large steps, an unknown bound.
// A pure call does not prevent unrolling.
// CHECK: scf.for {{.*}} to %c2 step %c1
// CHECK-NEXT: func.call
// CHECK: scf.for {{.*}} to %c2 step %c1
// CHECK-NEXT: math.asinh
// CHECK: scf.for {{.*}} to %c4 step %c2
// CHECK: scf.for {{.*}} = %c1 to %c2 step %c1
// CHECK: scf.for {{.*}} to %c401 step %c1
// CHECK: scf.for {{.*}} to %n step %c1
// CHECK-NOT: scf.for
// CHECK: xla_gpu.pure_call
// CHECK-NEXT: xla_gpu.pure_call
func.func @misses(%init: f32, %n: index) -> (f32, f32, f32, f32, f32, f32, f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c401 = arith.constant 401 : index
  %a = scf.for %i = %c0 to %c2 step %c1 iter_args(%it = %init) -> (f32) {
    %x = func.call @f(%it) : (f32) -> f32
    scf.yield %x : f32
  }
  %b = scf.for %i = %c0 to %c2 step %c1 iter_args(%it = %init) -> (f32) {
    %x = math.asinh %it : f32
    scf.yield %x : f32
  }
  %c = scf.for %i = %c0 to %c4 step %c2 iter_args(%it = %init) -> (f32) {
    %x = math.exp %it : f32
    scf.yield %x : f32
  }
  %d = scf.for %i = %c1 to %c2 step %c1 iter_args(%it = %init) -> (f32) {
    %x = math.exp %it : f32
    scf.yield %x : f32
  }
  %e = scf.for %i = %c0 to %c401 step %c1 iter_args(%it = %init) -> (f32) {
    %x = arith.addf %it, %it : f32
    scf.yield %x : f32
  }
  %g = scf.for %i = %c0 to %n step %c1 iter_args(%it = %init) -> (f32) {
    %x = arith.addf %it, %it : f32
    scf.yield %x : f32
  }
  %h = scf.for %i = %c0 to %c2 step %c1 iter_args(%it = %init) -> (f32) {
    %x = xla_gpu.pure_call @f(%it) : (f32) -> f32
    scf.yield %x : f32
  }
  return %a, %b, %c, %d, %e, %g, %h : f32, f32, f32, f32, f32, f32, f32
}
func.func private @f(%x: f32) -> f32 {
  return %x : f32
}
// -----
// RUN: --only=optimize-loops
// Two vectors are loaded at one index, which counts twice: 2 + 2 * 2 + 2 * 2 + 1 = 11 operations, so 36 steps at most.
// CHECK: scf.for %i = %c0 to %c80 step %c20
#map = #xla_gpu.indexing_map<"(th_x, d1) -> (th_x * 2 + d1 * 64), domain: th_x in [0, 31], d1 in [0, 79]">
func.func @main(%a: tensor<5120xf32>, %b: tensor<5120xf32>, %init: vector<2xf32>, %pad: f32) -> vector<2xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c80 = arith.constant 80 : index
  %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 31 : index]}
  %r = scf.for %i = %c0 to %c80 step %c1 iter_args(%sum = %init) -> (vector<2xf32>) {
    %k = xla_gpu.apply_indexing #map(%thread_id_x, %i)
    %x = vector.transfer_read %a[%k], %pad {in_bounds = [true]} : tensor<5120xf32>, vector<2xf32>
    %y = vector.transfer_read %b[%k], %pad {in_bounds = [true]} : tensor<5120xf32>, vector<2xf32>
    %s = arith.addf %x, %y : vector<2xf32>
    %t = arith.addf %sum, %s : vector<2xf32>
    scf.yield %t : vector<2xf32>
  }
  return %r : vector<2xf32>
}
