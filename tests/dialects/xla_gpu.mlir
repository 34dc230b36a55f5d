// RUN:
#map = #xla_gpu.indexing_map<"(th_x, bl_x)[vector_index] -> ("
 "bl_x floordiv 4096, (bl_x floordiv 8) mod 512, (bl_x mod 8) * 512 + th_x * 4 + vector_index),"
 "domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">

func.func @main(%input: tensor<6x512x4096xbf16> , %output: tensor<6x512x4096xbf16>)
   -> tensor<6x512x4096xbf16> {
 %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
 %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}

 %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%vector_index] -> (%dim0, %dim1, %dim2)
     in #map iter_args(%iter = %output) -> (tensor<6x512x4096xbf16>) {
   %pure_call = xla_gpu.pure_call @gelu(%input, %dim0, %dim1, %dim2)
      : (tensor<6x512x4096xbf16>, index, index, index) -> bf16
   %inserted = tensor.insert %pure_call into %iter[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
   xla_gpu.yield %inserted : tensor<6x512x4096xbf16>
 }
 return %xla_loop : tensor<6x512x4096xbf16>
}

func.func private @gelu(%arg0: tensor<6x512x4096xbf16>, %i: index, %j: index, %k: index) -> bf16 {
  %cst = arith.constant 5.000000e-01 : bf16
  %cst_0 = arith.constant 1.000000e+00 : bf16
  %cst_1 = arith.constant 7.968750e-01 : bf16
  %cst_2 = arith.constant 4.467770e-02 : bf16
  %extracted = tensor.extract %arg0[%i, %j, %k] : tensor<6x512x4096xbf16>
  %0 = arith.mulf %extracted, %extracted : bf16
  %1 = arith.mulf %0, %cst_2 : bf16
  %2 = math.tanh %1 : bf16
  return %2 : bf16
}
// GOLDEN
// #map = #xla_gpu.indexing_map<"(th_x, bl_x)[vector_index] -> (bl_x floordiv 4096, (bl_x floordiv 8) mod 512, (bl_x mod 8) * 512 + th_x * 4 + vector_index), domain: th_x in [0, 127], bl_x in [0, 24575], vector_index in [0, 3]">
// module {
//   func.func @main(%input: tensor<6x512x4096xbf16>, %output: tensor<6x512x4096xbf16>) -> tensor<6x512x4096xbf16> {
//     %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
//     %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}
//     %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%vector_index] -> (%dim0, %dim1, %dim2) in #map iter_args(%iter = %output) -> (tensor<6x512x4096xbf16>) {
//       %pure_call = xla_gpu.pure_call @gelu(%input, %dim0, %dim1, %dim2) : (tensor<6x512x4096xbf16>, index, index, index) -> bf16
//       %inserted = tensor.insert %pure_call into %iter[%dim0, %dim1, %dim2] : tensor<6x512x4096xbf16>
//       xla_gpu.yield %inserted : tensor<6x512x4096xbf16>
//     }
//     return %xla_loop : tensor<6x512x4096xbf16>
//   }
//   func.func private @gelu(%arg0: tensor<6x512x4096xbf16>, %i: index, %j: index, %k: index) -> bf16 {
//     %cst = arith.constant 5.000000e-01 : bf16
//     %cst_0 = arith.constant 1.000000e+00 : bf16
//     %cst_1 = arith.constant 7.968750e-01 : bf16
//     %cst_2 = arith.constant 4.467770e-02 : bf16
//     %extracted = tensor.extract %arg0[%i, %j, %k] : tensor<6x512x4096xbf16>
//     %0 = arith.mulf %extracted, %extracted : bf16
//     %1 = arith.mulf %0, %cst_2 : bf16
//     %2 = math.tanh %1 : bf16
//     return %2 : bf16
//   }
// }
// -----
// RUN:
#map = #xla_gpu.indexing_map<"(th_x, bl_x)[i, j] -> (i, th_x, bl_x + j), domain: th_x in [0, 31], bl_x in [0, 7], i in [0, 3], j in [0, 1]">
#map1 = #xla_gpu.indexing_map<"(a)[s] -> (a + s, a * 2), domain: a in [0, 31], s in [0, 7]">

func.func @all(%arg0: tensor<4x32x9xf32>, %arg1: tensor<8xf32>, %x: f32, %n: i32, %c: i1) -> tensor<4x32x9xf32> {
  %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 31 : index]}
  %block_id_x = gpu.block_id  x {xla.range = [0 : index, 7 : index]}
  %a, %b = xla_gpu.apply_indexing #map1(%thread_id_x)[%block_id_x] {xla.range = [0 : index, 62 : index]}
  %shmem = xla_gpu.allocate_shared : tensor<4x32x9xf32>
  %other = xla_gpu.allocate_shared : tensor<2xi32>
  %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%i, %j] -> (%ra, %rb, %rc) in #map iter_args(%iter = %shmem) -> (tensor<4x32x9xf32>) {
    %0 = xla_gpu.predicated_extract %arg0[%ra, %rb, %rc] if %c else %x : tensor<4x32x9xf32>
    %1 = xla_gpu.predicated_insert %0 into %iter[%ra, %rb, %rc] if %c : tensor<4x32x9xf32>
    xla_gpu.yield %1 : tensor<4x32x9xf32>
  }
  xla_gpu.loop (%thread_id_x, %block_id_x)[%i, %j] -> (%ra, %rb, %rc) in #map {
    xla_gpu.yield
  }
  %synced:2 = xla_gpu.sync_threads %xla_loop, %other : tensor<4x32x9xf32>, tensor<2xi32>
  %reduced:2 = xla_gpu.shuffle_reduce(%x, %n) to 16 combiner=@combine : f32, i32
  %atomic = xla_gpu.atomic_rmw %arg1[%block_id_x] : tensor<8xf32> {
  ^bb0(%current: f32):
    %sum = arith.addf %current, %reduced#0 : f32
    xla_gpu.yield %sum : f32
  }
  return %synced#0 : tensor<4x32x9xf32>
}

func.func private @combine(%a: f32, %b: i32, %c: f32, %d: i32) -> (f32, i32) {
  return %a, %d : f32, i32
}
// GOLDEN
// #map = #xla_gpu.indexing_map<"(a)[s] -> (a + s, a * 2), domain: a in [0, 31], s in [0, 7]">
// #map1 = #xla_gpu.indexing_map<"(th_x, bl_x)[i, j] -> (i, th_x, bl_x + j), domain: th_x in [0, 31], bl_x in [0, 7], i in [0, 3], j in [0, 1]">
// module {
//   func.func @all(%arg0: tensor<4x32x9xf32>, %arg1: tensor<8xf32>, %x: f32, %n: i32, %c: i1) -> tensor<4x32x9xf32> {
//     %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 31 : index]}
//     %block_id_x = gpu.block_id  x {xla.range = [0 : index, 7 : index]}
//     %a:2 = xla_gpu.apply_indexing #map(%thread_id_x)[%block_id_x] {xla.range = [0 : index, 62 : index]}
//     %shmem = xla_gpu.allocate_shared : tensor<4x32x9xf32>
//     %other = xla_gpu.allocate_shared : tensor<2xi32>
//     %xla_loop = xla_gpu.loop (%thread_id_x, %block_id_x)[%i, %j] -> (%ra, %rb, %rc) in #map1 iter_args(%iter = %shmem) -> (tensor<4x32x9xf32>) {
//       %0 = xla_gpu.predicated_extract %arg0[%ra, %rb, %rc] if %c else %x : tensor<4x32x9xf32>
//       %1 = xla_gpu.predicated_insert %0 into %iter[%ra, %rb, %rc] if %c : tensor<4x32x9xf32>
//       xla_gpu.yield %1 : tensor<4x32x9xf32>
//     }
//     xla_gpu.loop (%thread_id_x, %block_id_x)[%i, %j] -> (%ra, %rb, %rc) in #map1 {
//       xla_gpu.yield
//     }
//     %synced:2 = xla_gpu.sync_threads %xla_loop, %other : tensor<4x32x9xf32>, tensor<2xi32>
//     %reduced:2 = xla_gpu.shuffle_reduce(%x, %n) to 16 combiner=@combine : f32, i32
//     %atomic = xla_gpu.atomic_rmw %arg1[%block_id_x] : tensor<8xf32> {
//     ^bb0(%current: f32):
//       %sum = arith.addf %current, %reduced#0 : f32
//       xla_gpu.yield %sum : f32
//     }
//     return %synced#0 : tensor<4x32x9xf32>
//   }
//   func.func private @combine(%a: f32, %b: i32, %c: f32, %d: i32) -> (f32, i32) {
//     return %a, %d : f32, i32
//   }
// }
// -----
// RUN: --print_ir_generic
#map = #xla_gpu.indexing_map<"(th_x)[i] -> (th_x + i), domain: th_x in [0, 31], i in [0, 3]">
func.func @f(%t: tensor<40xf32>, %i: index) -> tensor<40xf32> {
  // CHECK: #map = #xla_gpu.indexing_map<"(th_x)[i] -> (th_x + i), domain: th_x in [0, 31], i in [0, 3]">
  // CHECK: "xla_gpu.loop"(%i, %t) <{indexing_map = #map, operandSegmentSizes = array<i32: 1, 1>}> ({
  // CHECK-NEXT: ^bb0(%i_0: index, %ra: index, %iter: tensor<40xf32>):
  %xla_loop = xla_gpu.loop (%i)[%i_0] -> (%ra) in #map iter_args(%iter = %t) -> (tensor<40xf32>) {
    xla_gpu.yield %iter : tensor<40xf32>
  }
  return %xla_loop : tensor<40xf32>
}
// -----
// RUN:
// Names are from the op or from a hint; sibling regions start with the same numbers.
func.func @names(%arg0: tensor<4xf32>, %arg1: index) -> f32 {
  %a = arith.constant 3 : i32
  %b = arith.constant true
  %x = arith.constant -2 : index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  // CHECK: %c3_i32 = arith.constant 3 : i32
  // CHECK-NEXT: %true = arith.constant true
  // CHECK-NEXT: %c-2 = arith.constant -2 : index
  %17 = tensor.extract %arg0[%arg1] : tensor<4xf32>
  // CHECK: %extracted = tensor.extract %arg0[%arg1] : tensor<4xf32>
  scf.for %i = %c0 to %c1 step %c1 {
    %2 = arith.addf %17, %17 : f32
    // CHECK: scf.for %i = %c0 to %c1 step %c1 {
    // CHECK-NEXT: %1 = arith.addf %extracted, %extracted : f32
  }
  scf.for %i = %c0 to %c1 step %c1 {
    %2 = arith.mulf %17, %17 : f32
    // CHECK: scf.for %i = %c0 to %c1 step %c1 {
    // CHECK-NEXT: %1 = arith.mulf %extracted, %extracted : f32
  }
  %sum = arith.addf %17, %17 : f32
  %3 = arith.addf %sum, %17 : f32
  // CHECK: %sum = arith.addf
  // CHECK-NEXT: %0 = arith.addf %sum, %extracted : f32
  return %3 : f32
}
// -----
// RUN:
// The location of an op is printed only on request.
func.func @f(%x: f32) -> f32 {
  // CHECK: arith.addf %x, %x : f32
  %0 = arith.addf %x, %x {hlo.op = "add.1"} : f32
  return %0 : f32
}
// -----
// RUN: --print_locations
func.func @f(%x: f32) -> f32 {
  // CHECK: arith.addf %x, %x {hlo.op = "add.1"} : f32
  %0 = arith.addf %x, %x {hlo.op = "add.1"} : f32
  // CHECK: arith.cmpf oeq, %x, %0 {hlo.op = "compare.2"} : f32
  %1 = arith.cmpf oeq, %x, %0 {hlo.op = "compare.2"} : f32
  // CHECK: arith.select
  %2 = arith.select %1, %x, %0 : f32
  return %2 : f32
}
// -----
// RUN:
// After lower-tensors, the ops of the dialect are printed in generic form, which MLIR parses.
func.func @f(%p: !llvm.ptr, %i: index) {
  // CHECK: %0 = "xla_gpu.apply_indexing"(%i) <{indexing_map = #map}> : (index) -> index
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0 * 2), domain: d0 in [0, 3]">(%i)
  return
}
// -----
// RUN:
func.func @f(%i: index) {
  // ERROR: apply_indexing cannot have constraints
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0), domain: d0 in [0, 9], d0 mod 2 in [0, 0]">(%i)
  return
}
// -----
// RUN:
func.func @f(%i: index) {
  // ERROR: apply_indexing has 1 operands, its map has 2 variables
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0)[s0] -> (d0 + s0), domain: d0 in [0, 9], s0 in [0, 1]">(%i)
  return
}
// -----
// RUN:
func.func @f(%i: index) {
  // ERROR: expected ')' in an indexing map
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0">(%i)
  return
}
// -----
// RUN:
func.func @f(%i: index, %t: tensor<4xf32>) -> tensor<4xf32> {
  // ERROR: loop body has 2 arguments, expected 1 induction variables, 1 map results and 1 iteration values
  %0 = "xla_gpu.loop"(%i, %t) <{indexing_map = #xla_gpu.indexing_map<"(d0)[s0] -> (d0), domain: d0 in [0, 9], s0 in [0, 1]">,
    operandSegmentSizes = array<i32: 1, 1>}> ({
  ^bb0(%s: index, %iter: tensor<4xf32>):
    "xla_gpu.yield"(%iter) : (tensor<4xf32>) -> ()
  }) : (index, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// -----
// RUN:
func.func @f(%i: index, %t: tensor<4xf32>, %x: f32) {
  // ERROR: types of the yielded values of a loop differ from the types of its inits
  %0 = xla_gpu.loop (%i)[%s] -> (%a) in #xla_gpu.indexing_map<"(d0)[s0] -> (d0), domain: d0 in [0, 9], s0 in [0, 1]"> iter_args(%iter = %t) -> (tensor<4xf32>) {
    xla_gpu.yield %x : f32
  }
  return
}
// -----
// RUN:
func.func @f(%i: index) {
  // ERROR: loop has 2 dims, its map has 1
  xla_gpu.loop (%i, %i)[] -> (%a) in #xla_gpu.indexing_map<"(d0) -> (d0), domain: d0 in [0, 9]"> {
    xla_gpu.yield
  }
  return
}
// -----
// RUN:
func.func @f(%i: index) {
  // ERROR: pure_call of @g, which is not a func.func
  %0 = xla_gpu.pure_call @g(%i) : (index) -> f32
  return
}
// -----
// RUN:
func.func @f(%i: index) {
  // ERROR: pure_call of @g with 1 arguments, expected 0
  %0 = xla_gpu.pure_call @g(%i) : (index) -> f32
  return
}
func.func private @g() -> f32
// -----
// RUN:
func.func @f(%t: tensor<4xf32>, %i: index, %n: i32) {
  // ERROR: atomic_rmw must yield one value of the type of its block argument
  %0 = xla_gpu.atomic_rmw %t[%i] : tensor<4xf32> {
  ^bb0(%current: f32):
    xla_gpu.yield %n : i32
  }
  return
}
// -----
// RUN:
func.func @f(%t: tensor<4xf32>, %i: index) {
  // ERROR: the block argument of atomic_rmw differs from the tensor's element type
  %0 = xla_gpu.atomic_rmw %t[%i] : tensor<4xf32> {
  ^bb0(%current: vector<2xi32>):
    xla_gpu.yield %current : vector<2xi32>
  }
  return
}
// -----
// RUN:
func.func @f(%t: tensor<4x4xf32>, %i: index, %c: i1, %x: f32) {
  // ERROR: predicated accesses need one index per dimension
  %0 = xla_gpu.predicated_extract %t[%i] if %c else %x : tensor<4x4xf32>
  return
}
// -----
// RUN:
func.func @f() {
  // ERROR: shared memory needs a static shape
  %0 = xla_gpu.allocate_shared : tensor<?xf32>
  return
}
// -----
// RUN:
func.func @f(%x: f32) {
  // ERROR: must be in an xla_gpu.loop or xla_gpu.atomic_rmw
  xla_gpu.yield %x : f32
}
// -----
// RUN:
func.func @f(%i: index) {
  // ERROR: string literal is not terminated
  %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0), domain: d0 in [0, 9], aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
    >(%i)
  return
}
