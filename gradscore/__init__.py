"""Per-sample gradients that tell whether a prediction is wrong or a sample is out of distribution."""
