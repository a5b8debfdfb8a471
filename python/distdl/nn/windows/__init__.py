"""The common parts of layers whose outputs read windows of the inputs, such as convolution, pooling and padding."""
