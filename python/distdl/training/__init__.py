"""What a training run needs around its layers: norms and scales of gradients, and what optimizers may be used."""
