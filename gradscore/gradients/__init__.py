"""Per-sample gradients, read off the autograd graph."""
