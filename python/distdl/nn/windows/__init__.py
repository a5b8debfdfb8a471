"""What layers have in common whose outputs read windows of the inputs: convolution, pooling, interpolation, padding."""
