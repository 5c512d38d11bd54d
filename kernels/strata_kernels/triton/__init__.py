"""Sources of the GPU kernels, in the subset that Triton 3.2 compiles. Nothing outside gpu/ imports them."""
