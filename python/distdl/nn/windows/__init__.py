"""The common parts of layers whose outputs read windows of the inputs: convolution, pooling, padding."""
