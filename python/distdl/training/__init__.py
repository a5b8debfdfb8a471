"""Tools for training: norms and scales of gradients, and checks of optimizers."""
