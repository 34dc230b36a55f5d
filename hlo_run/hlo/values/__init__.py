"""Plain values of the graph: types, shapes, literals, shardings and the records that attributes hold."""
