// RUN: --only=lower-to-llvm-gpu
// The listing "Conversion to LLVM" of the text "XLA:GPU Emitters".
module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
  func.func @main(%arg0: !llvm.ptr, %arg1: !llvm.ptr) {
    %c512_i32 = arith.constant 512 : i32
    %c4_i32 = arith.constant 4 : i32
    %cst = arith.constant 4.467770e-02 : bf16
    %cst_0 = arith.constant 7.968750e-01 : bf16
    %cst_1 = arith.constant 1.000000e+00 : bf16
    %cst_2 = arith.constant 5.000000e-01 : bf16
    %cst_3 = arith.constant dense<0.0> : vector<4xbf16>
    %thread_id_x = gpu.thread_id  x {xla.range = [0 : index, 127 : index]}
    %block_id_x = gpu.block_id  x {xla.range = [0 : index, 24575 : index]}
    %0 = arith.index_cast %thread_id_x : index to i32
    %1 = arith.muli %0, %c4_i32 : i32
    %2 = arith.index_cast %block_id_x : index to i32
    %3 = arith.muli %2, %c512_i32 : i32
    %4 = arith.addi %1, %3 : i32
    %5 = llvm.getelementptr inbounds %arg0[%4] : (!llvm.ptr, i32) -> !llvm.ptr, bf16
    %6 = llvm.load %5 invariant : !llvm.ptr -> vector<4xbf16>
    %7 = vector.extract %6[0] : bf16 from vector<4xbf16>
    %8 = arith.mulf %7, %7 : bf16
    %9 = arith.mulf %8, %7 : bf16
    %10 = arith.mulf %9, %cst : bf16
    %11 = arith.addf %7, %10 : bf16
    %12 = arith.mulf %11, %cst_0 : bf16
    %13 = math.tanh %12 : bf16
    %14 = arith.addf %13, %cst_1 : bf16
    %15 = arith.mulf %14, %cst_2 : bf16
    %16 = arith.mulf %7, %15 : bf16
    %17 = vector.insert %16, %cst_3[0] : bf16 into vector<4xbf16>
    %18 = llvm.getelementptr inbounds %arg1[%4] : (!llvm.ptr, i32) -> !llvm.ptr, bf16
    llvm.store %17, %18 : vector<4xbf16>, !llvm.ptr
    return
  }
}
// CHECK: llvm.func @__nv_tanhf(f32) -> f32
// CHECK-NEXT: llvm.func @main(%arg0: !llvm.ptr, %arg1: !llvm.ptr) {
// CHECK-DAG: [[C512:%[0-9]+]] = llvm.mlir.constant(512 : i32) : i32
// CHECK-DAG: [[C4:%[0-9]+]] = llvm.mlir.constant(4 : i32) : i32
// CHECK-DAG: [[C0:%[0-9]+]] = llvm.mlir.constant(0 : i32) : i32
// CHECK-DAG: [[ZEROS:%[0-9]+]] = llvm.mlir.constant(dense<0.000000e+00> : vector<4xbf16>) : vector<4xbf16>
// CHECK: [[TID:%[0-9]+]] = nvvm.read.ptx.sreg.tid.x : i32
// CHECK-NEXT: [[CTA:%[0-9]+]] = nvvm.read.ptx.sreg.ctaid.x : i32
// CHECK-NEXT: [[A:%[0-9]+]] = llvm.mul [[TID]], [[C4]] : i32
// CHECK-NEXT: [[B:%[0-9]+]] = llvm.mul [[CTA]], [[C512]] : i32
// CHECK-NEXT: [[I:%[0-9]+]] = llvm.add [[A]], [[B]] : i32
// CHECK-NEXT: [[P:%[0-9]+]] = llvm.getelementptr inbounds %arg0[[[I]]] : (!llvm.ptr, i32) -> !llvm.ptr, bf16
// CHECK-NEXT: [[V:%[0-9]+]] = llvm.load [[P]] invariant : !llvm.ptr -> vector<4xbf16>
// CHECK-NEXT: [[X:%[0-9]+]] = llvm.extractelement [[V]][[[C0]] : i32] : vector<4xbf16>
// CHECK-NEXT: [[S:%[0-9]+]] = llvm.fmul [[X]], [[X]] : bf16
// CHECK-NEXT: [[T:%[0-9]+]] = llvm.fmul [[S]], [[X]] : bf16
// CHECK-NEXT: [[U:%[0-9]+]] = llvm.fmul [[T]], {{%[0-9]+}} : bf16
// CHECK-NEXT: [[W:%[0-9]+]] = llvm.fadd [[X]], [[U]] : bf16
// CHECK-NEXT: [[Y:%[0-9]+]] = llvm.fmul [[W]], {{%[0-9]+}} : bf16
// CHECK-NEXT: [[E:%[0-9]+]] = llvm.fpext [[Y]] : bf16 to f32
// CHECK-NEXT: [[F:%[0-9]+]] = llvm.call @__nv_tanhf([[E]]) : (f32) -> f32
// CHECK-NEXT: [[G:%[0-9]+]] = llvm.fptrunc [[F]] : f32 to bf16
// CHECK-NEXT: [[H:%[0-9]+]] = llvm.fadd [[G]], {{%[0-9]+}} : bf16
// CHECK-NEXT: [[J:%[0-9]+]] = llvm.fmul [[H]], {{%[0-9]+}} : bf16
// CHECK-NEXT: [[K:%[0-9]+]] = llvm.fmul [[X]], [[J]] : bf16
// CHECK-NEXT: llvm.insertelement [[K]], [[ZEROS]][[[C0]] : i32] : vector<4xbf16>
// -----
// RUN: --only=lower-to-llvm-gpu
// Index becomes an integer of the module's width; ids are extended to 64 bits; constants are shared.
func.func @f(%a: index, %p: !llvm.ptr) -> index {
  %c8 = arith.constant 8 : index
  %c8_i64 = arith.constant 8 : i64
  %t = gpu.thread_id  y
  %b = gpu.block_id  z
  %s = arith.addi %a, %c8 overflow<nsw> : index
  %m = arith.muli %t, %s overflow<nsw, nuw> : index
  %n = arith.addi %m, %b : index
  %i = arith.index_cast %n : index to i64
  %j = arith.addi %i, %c8_i64 : i64
  %k = arith.index_cast %j : i64 to index
  %u = arith.index_castui %k : index to i32
  %v = arith.index_castui %u : i32 to index
  %w = arith.index_cast %u : i32 to index
  %r = arith.subi %v, %w : index
  return %r : index
}
// CHECK: llvm.func @f(%a: i64, %p: !llvm.ptr) -> i64 {
// CHECK-NEXT: [[C8:%[0-9]+]] = llvm.mlir.constant(8) : i64
// CHECK-NEXT: [[T:%[0-9]+]] = nvvm.read.ptx.sreg.tid.y : i32
// CHECK-NEXT: [[TW:%[0-9]+]] = llvm.sext [[T]] : i32 to i64
// CHECK-NEXT: [[B:%[0-9]+]] = nvvm.read.ptx.sreg.ctaid.z : i32
// CHECK-NEXT: [[BW:%[0-9]+]] = llvm.sext [[B]] : i32 to i64
// CHECK-NEXT: [[S:%[0-9]+]] = llvm.add %a, [[C8]] overflow<nsw> : i64
// CHECK-NEXT: [[M:%[0-9]+]] = llvm.mul [[TW]], [[S]] overflow<nsw,nuw> : i64
// CHECK-NEXT: [[N:%[0-9]+]] = llvm.add [[M]], [[BW]] : i64
// CHECK-NEXT: [[J:%[0-9]+]] = llvm.add [[N]], [[C8]] : i64
// CHECK-NEXT: [[U:%[0-9]+]] = llvm.trunc [[J]] : i64 to i32
// CHECK-NEXT: [[V:%[0-9]+]] = llvm.zext [[U]] : i32 to i64
// CHECK-NEXT: [[W:%[0-9]+]] = llvm.sext [[U]] : i32 to i64
// CHECK-NEXT: [[R:%[0-9]+]] = llvm.sub [[V]], [[W]] : i64
// CHECK-NEXT: llvm.return [[R]] : i64
// -----
// RUN: --only=lower-to-llvm-gpu
// libdevice by type: f64 plain, f32 with suffix f, f16 and bf16 by way of f32, fast functions with afn. A name is declared once.
func.func @f(%a: f64, %b: f32, %c: f16, %d: bf16) -> (f64, f32, f16, bf16) {
  %0 = math.exp %a : f64
  %1 = math.exp %b : f32
  %2 = math.exp %c fastmath<afn> : f16
  %3 = math.log %d fastmath<afn> : bf16
  %4 = math.roundeven %1 : f32
  %5 = math.absf %4 : f32
  %6 = math.powf %0, %a : f64
  %7 = arith.remf %2, %c : f16
  %8 = math.exp %5 : f32
  %9 = math.absf %6 : f64
  return %9, %8, %7, %3 : f64, f32, f16, bf16
}
// CHECK: llvm.func @__nv_exp(f64) -> f64
// CHECK-NEXT: llvm.func @__nv_expf(f32) -> f32
// CHECK-NEXT: llvm.func @__nv_fast_expf(f32) -> f32
// CHECK-NEXT: llvm.func @__nv_fast_logf(f32) -> f32
// CHECK-NEXT: llvm.func @__nv_rintf(f32) -> f32
// CHECK-NEXT: llvm.func @__nv_fabsf(f32) -> f32
// CHECK-NEXT: llvm.func @__nv_pow(f64, f64) -> f64
// CHECK-NEXT: llvm.func @__nv_fmodf(f32, f32) -> f32
// CHECK-NEXT: llvm.func @__nv_fabs(f64) -> f64
// CHECK-NEXT: llvm.func @f(
// CHECK-SAME: -> !llvm.struct<(f64, f32, f16, bf16)> {
// CHECK: llvm.call @__nv_exp(%a) : (f64) -> f64
// CHECK: [[C:%[0-9]+]] = llvm.fpext %c : f16 to f32
// CHECK-NEXT: [[E:%[0-9]+]] = llvm.call @__nv_fast_expf([[C]]) : (f32) -> f32
// CHECK-NEXT: [[H:%[0-9]+]] = llvm.fptrunc [[E]] : f32 to f16
// CHECK: llvm.mlir.poison : !llvm.struct<(f64, f32, f16, bf16)>
// CHECK-COUNT-4: llvm.insertvalue
// CHECK: llvm.return {{%[0-9]+}} : !llvm.struct<(f64, f32, f16, bf16)>
// -----
// RUN: --only=lower-to-llvm-gpu
// Minimum and maximum propagate NaN; bit counts; integers wrap; comparisons keep their predicate; ops keep their flags.
func.func @f(%x: f32, %y: f32, %i: i8, %j: i8) -> f32 {
  %a = arith.maximumf %x, %y : f32
  %b = arith.minimumf %a, %y : f32
  %c = arith.addf %a, %b fastmath<nsz> : f32
  %d = math.ctlz %i : i8
  %e = math.ctpop %d : i8
  %f = math.absi %e : i8
  %g = arith.maxsi %f, %j : i8
  %h = arith.minui %g, %j : i8
  %k = arith.cmpi ule, %h, %j : i8
  %l = arith.cmpf une, %c, %x : f32
  %m = arith.andi %k, %l : i1
  %n = arith.uitofp %h : i8 to f32
  %o = arith.fptosi %n : f32 to i8
  %p = arith.sitofp %o : i8 to f32
  %q = math.trunc %p : f32
  %r = arith.select %m, %q, %c : f32
  return %r : f32
}
// CHECK: [[A:%[0-9]+]] = llvm.intr.maximum(%x, %y) : (f32, f32) -> f32
// CHECK-NEXT: [[B:%[0-9]+]] = llvm.intr.minimum([[A]], %y) : (f32, f32) -> f32
// CHECK-NEXT: [[C:%[0-9]+]] = llvm.fadd [[A]], [[B]] {fastmathFlags = #llvm.fastmath<nsz>} : f32
// CHECK-NEXT: [[D:%[0-9]+]] = "llvm.intr.ctlz"(%i) <{is_zero_poison = false}> : (i8) -> i8
// CHECK-NEXT: [[E:%[0-9]+]] = llvm.intr.ctpop([[D]]) : (i8) -> i8
// CHECK-NEXT: [[F:%[0-9]+]] = "llvm.intr.abs"([[E]]) <{is_int_min_poison = false}> : (i8) -> i8
// CHECK-NEXT: [[G:%[0-9]+]] = llvm.intr.smax([[F]], %j) : (i8, i8) -> i8
// CHECK-NEXT: [[H:%[0-9]+]] = llvm.intr.umin([[G]], %j) : (i8, i8) -> i8
// CHECK-NEXT: llvm.icmp "ule" [[H]], %j : i8
// CHECK-NEXT: llvm.fcmp "une" [[C]], %x : f32
// CHECK-NEXT: llvm.and
// CHECK-NEXT: llvm.uitofp [[H]] : i8 to f32
// CHECK-NEXT: llvm.fptosi
// CHECK-NEXT: llvm.sitofp
// CHECK-NEXT: llvm.intr.trunc
// CHECK-NEXT: llvm.select
// -----
// RUN: --only=lower-to-llvm-gpu
// Blocks, calls of internal functions, shuffles, barriers, vectors.
module attributes {dlti.dl_spec = #dlti.dl_spec<index = 32 : i32>} {
  func.func @kernel(%p: !llvm.ptr {llvm.noalias}, %n: index, %x: f32) attributes {xla.entry} {
    %c0 = arith.constant 0 : index
    %c16_i32 = arith.constant 16 : i32
    %c32_i32 = arith.constant 32 : i32
    cf.br ^bb1(%c0, %x : index, f32)
  ^bb1(%i: index, %a: f32):
    %go = arith.cmpi slt, %i, %n : index
    cf.cond_br %go, ^bb2, ^bb3
  ^bb2:
    %down, %valid = gpu.shuffle  down %a, %c16_i32, %c32_i32 : f32
    %s:2 = func.call @add(%a, %down) : (f32, f32) -> (f32, i32)
    %j = arith.index_cast %s#1 : i32 to index
    cf.br ^bb1(%j, %s#0 : index, f32)
  ^bb3:
    gpu.barrier
    %v = vector.broadcast %a : f32 to vector<2xf32>
    %w = vector.insert %x, %v[%n] : f32 into vector<2xf32>
    llvm.store %w, %p : vector<2xf32>, !llvm.ptr
    return
  }
  func.func private @add(%a: f32, %b: f32) -> (f32, i32) {
    %s = arith.addf %a, %b : f32
    %c1 = arith.constant 1 : i32
    return %s, %c1 : f32, i32
  }
}
// CHECK: llvm.func @kernel(%p: !llvm.ptr {llvm.noalias}, %n: i32, %x: f32) attributes {xla.entry} {
// CHECK: llvm.br ^bb1({{%[0-9]+}}, %x : i32, f32)
// CHECK: ^bb1(%i: i32, %a: f32):
// CHECK-NEXT: [[GO:%[0-9]+]] = llvm.icmp "slt" %i, %n : i32
// CHECK-NEXT: llvm.cond_br [[GO]], ^bb2, ^bb3
// CHECK: [[D:%[0-9]+]] = nvvm.shfl.sync down [[MASK:%[0-9]+]], %a, {{%[0-9]+}}, {{%[0-9]+}} : f32 -> f32
// CHECK-NEXT: [[S:%[0-9]+]] = llvm.call @add(%a, [[D]]) : (f32, f32) -> !llvm.struct<(f32, i32)>
// CHECK-NEXT: [[S0:%[0-9]+]] = llvm.extractvalue [[S]][0] : !llvm.struct<(f32, i32)>
// CHECK-NEXT: [[S1:%[0-9]+]] = llvm.extractvalue [[S]][1] : !llvm.struct<(f32, i32)>
// CHECK-NEXT: llvm.br ^bb1([[S1]], [[S0]] : i32, f32)
// CHECK: nvvm.barrier
// CHECK: llvm.insertelement %a, {{%[0-9]+}}[{{%[0-9]+}} : i32] : vector<2xf32>
// CHECK-NEXT: llvm.shufflevector
// CHECK-NEXT: llvm.insertelement %x, {{%[0-9]+}}[%n : i32] : vector<2xf32>
// CHECK: llvm.func internal @add(%a: f32, %b: f32) -> !llvm.struct<(f32, i32)> {
// -----
// RUN: --only=lower-to-llvm-gpu
func.func @f(%x: f8E4M3FN) -> f32 {
  %y = arith.extf %x : f8E4M3FN to f32
  return %y : f32
}
// ERROR: unsupported: conversions of f8E4M3FN in a kernel
// -----
// RUN: --only=lower-to-llvm-gpu
func.func @f(%x: f32, %c: i1) -> f32 {
  %y = scf.if %c -> (f32) {
    scf.yield %x : f32
  } else {
    scf.yield %x : f32
  }
  return %y : f32
}
// ERROR: internal error: 'scf.if' has no lowering to LLVM
// -----
// RUN: --only=lower-to-llvm-gpu --print_locations
func.func @f(%x: f32) -> f32 {
  %y = math.exp %x {hlo.op = "exp.1"} : f32
  return %y : f32
}
// CHECK: llvm.call @__nv_expf(%x) {hlo.op = "exp.1"} : (f32) -> f32
