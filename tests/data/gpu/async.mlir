module attributes {gpu.container_module} {
  gpu.module @k {
    gpu.func @scale(%a: f32, %x: memref<?xf32, 1>) kernel {
      %i = gpu.global_id x
      %c0 = arith.constant 0 : index
      %n = memref.dim %x, %c0 : memref<?xf32, 1>
      %in = arith.cmpi slt, %i, %n : index
      cf.cond_br %in, ^body, ^end
    ^body:
      %v = memref.load %x[%i] : memref<?xf32, 1>
      %w = arith.mulf %v, %a : f32
      memref.store %w, %x[%i] : memref<?xf32, 1>
      cf.br ^end
    ^end:
      gpu.return
    }
  }
  func.func @main(%a: f32, %x: memref<?xf32>, %y: memref<?xf32>, %n: index) {
    %c1 = arith.constant 1 : index
    %c32 = arith.constant 32 : index
    %g = arith.ceildivsi %n, %c32 : index
    %t0 = gpu.wait async
    %m, %t1 = gpu.alloc async [%t0] (%n) : memref<?xf32, 1>
    %t2 = gpu.memcpy async [%t1] %m, %x : memref<?xf32, 1>, memref<?xf32>
    %t3 = gpu.launch_func async [%t2] @k::@scale blocks in (%g, %c1, %c1) threads in (%c32, %c1, %c1) args(%a : f32, %m : memref<?xf32, 1>)
    %two = arith.constant 2.0 : f32
    %t4 = gpu.launch_func async [%t3] @k::@scale blocks in (%g, %c1, %c1) threads in (%c32, %c1, %c1) args(%two : f32, %m : memref<?xf32, 1>)
    %t5 = gpu.memcpy async [%t4] %y, %m : memref<?xf32>, memref<?xf32, 1>
    %t6 = gpu.dealloc async [%t5] %m : memref<?xf32, 1>
    gpu.wait [%t6]
    return
  }
}
