"""ONNX read as a graph: `reader` walks a file's nodes, and a table says of each operator what it is in the graph."""
