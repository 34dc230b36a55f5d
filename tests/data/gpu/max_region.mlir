// old spelling, max by region, on f64, 100 threads
func @main(%x : memref<400xf64>, %out : memref<400xf64>) {
  %c1 = constant 1 : index
  %c4 = constant 4 : index
  %c100 = constant 100 : index
  "gpu.launch"(%c4, %c1, %c1, %c100, %c1, %c1, %x, %out) : (index, index, index, index, index, index, memref<400xf64>, memref<400xf64>) -> () {
  ^bb0(%bx : index, %by : index, %bz : index, %tx : index, %ty : index, %tz : index,
       %nbx : index, %nby : index, %nbz : index, %ntx : index, %nty : index, %ntz : index,
       %x : memref<400xf64>, %out : memref<400xf64>):
    %0 = muli %bx, %ntx : index
    %1 = addi %0, %tx : index
    %2 = "std.load"(%x, %1) : (memref<400xf64>, index) -> f64
    %3 = "gpu.all_reduce"(%2) ({
    ^bb(%lhs : f64, %rhs : f64):
      %gt = cmpf "ogt", %lhs, %rhs : f64
      %m = select %gt, %lhs, %rhs : f64
      "gpu.yield"(%m) : (f64) -> ()
    }) : (f64) -> (f64)
    "std.store"(%3, %out, %1) : (f64, memref<400xf64>, index) -> ()
    "gpu.terminator"() : () -> ()
  }
  return
}
