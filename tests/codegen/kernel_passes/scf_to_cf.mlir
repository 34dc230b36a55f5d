// RUN: --only=scf-to-cf
// A loop: header with the carried values, body, exit.
func.func @f(%lb: index, %ub: index, %step: index, %x: f32) -> f32 {
  %r = scf.for %i = %lb to %ub step %step iter_args(%a = %x) -> (f32) {
    %y = arith.mulf %a, %a : f32
    scf.yield %y : f32
  }
  %s = arith.addf %r, %r : f32
  return %s : f32
}
// CHECK: cf.br ^bb1(%lb, %x : index, f32)
// CHECK-NEXT: ^bb1(%i: index, %a: f32):
// CHECK-NEXT: [[C:%[0-9]+]] = arith.cmpi slt, %i, %ub : index
// CHECK-NEXT: cf.cond_br [[C]], ^bb2, ^bb3
// CHECK-NEXT: ^bb2:
// CHECK-NEXT: %y = arith.mulf %a, %a : f32
// CHECK-NEXT: [[N:%[0-9]+]] = arith.addi %i, %step : index
// CHECK-NEXT: cf.br ^bb1([[N]], %y : index, f32)
// CHECK-NEXT: ^bb3:
// CHECK-NEXT: %s = arith.addf %a, %a : f32
// CHECK-NEXT: return %s : f32
// -----
// RUN: --only=scf-to-cf
// An if without else jumps to the following block; the branches of an if with results jump to a block with arguments.
func.func @f(%c: i1, %p: !llvm.ptr, %x: f32) -> f32 {
  scf.if %c {
    llvm.store %x, %p : f32, !llvm.ptr
  }
  %r = scf.if %c -> (f32) {
    %y = arith.mulf %x, %x : f32
    scf.yield %y : f32
  } else {
    scf.yield %x : f32
  }
  return %r : f32
}
// CHECK: cf.cond_br %c, ^bb1, ^bb2{{$}}
// CHECK-NEXT: ^bb1:
// CHECK-NEXT: llvm.store
// CHECK-NEXT: cf.br ^bb2
// CHECK-NEXT: ^bb2:
// CHECK-NEXT: cf.cond_br %c, ^bb3, ^bb4(%x : f32)
// CHECK-NEXT: ^bb3:
// CHECK-NEXT: %y = arith.mulf
// CHECK-NEXT: cf.br ^bb4(%y : f32)
// CHECK-NEXT: ^bb4(%r: f32):
// CHECK-NEXT: return %r : f32
// -----
// RUN: --only=scf-to-cf
// Two empty branches become a select, since LLVM does not allow two jumps to one block with different values.
func.func @f(%c: i1, %x: f32, %y: f32) -> f32 {
  %r = scf.if %c -> (f32) {
    scf.yield %x : f32
  } else {
    scf.yield %y : f32
  }
  return %r : f32
}
// CHECK: %r = arith.select %c, %x, %y : f32
// CHECK-NEXT: return %r
// -----
// RUN: --only=scf-to-cf --twice
// A switch, with an if inside.
func.func @f(%i: index, %c: i1, %p: !llvm.ptr, %x: f32) -> f32 {
  %r = scf.index_switch %i -> f32
  case 1 {
    scf.if %c {
      llvm.store %x, %p : f32, !llvm.ptr
    }
    scf.yield %x : f32
  }
  case 4 {
    %z = arith.negf %x : f32
    scf.yield %z : f32
  }
  default {
    %y = arith.mulf %x, %x : f32
    scf.yield %y : f32
  }
  return %r : f32
}
// CHECK: [[I:%[0-9]+]] = arith.index_cast %i : index to i32
// CHECK: cf.switch [[I]] : i32, [
// CHECK-NEXT: default: ^bb1,
// CHECK-NEXT: 1: ^bb2,
// CHECK-NEXT: 4: ^bb[[FOUR:[0-9]+]]
// CHECK: ^bb1:
// CHECK-NEXT: %y = arith.mulf
// CHECK-NEXT: cf.br ^bb[[AFTER:[0-9]+]](%y : f32)
// CHECK: ^bb2:
// CHECK-NEXT: cf.cond_br %c
// CHECK: ^bb[[FOUR]]:
// CHECK: ^bb[[AFTER]](%r: f32):
// CHECK-NOT: scf
// -----
// RUN: --only=scf-to-cf
// Loops in loops.
func.func @f(%n: index, %p: !llvm.ptr, %x: f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    scf.for %j = %i to %n step %c1 {
      llvm.store %x, %p : f32, !llvm.ptr
    }
  }
  return
}
// CHECK: cf.br ^bb1(%c0 : index)
// CHECK: ^bb1(%i: index):
// CHECK: cf.cond_br {{%[0-9]+}}, ^bb2, ^bb6
// CHECK: ^bb2:
// CHECK-NEXT: cf.br ^bb3(%i : index)
// CHECK: ^bb3(%j: index):
// CHECK: cf.cond_br {{%[0-9]+}}, ^bb4, ^bb5
// CHECK: ^bb5:
// CHECK: cf.br ^bb1
// CHECK: ^bb6:
// CHECK-NEXT: return
