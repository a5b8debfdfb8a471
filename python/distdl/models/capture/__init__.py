"""Record the computation of a model while it runs on tensors without values."""
