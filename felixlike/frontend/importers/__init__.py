"""Import models of every supported kind (PyTorch, ONNX, Relax, PrimFunc) into Relax."""
