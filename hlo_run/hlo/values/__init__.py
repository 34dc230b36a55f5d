"""Plain values of the graph: element types, shapes, literals, shardings, attribute records."""
