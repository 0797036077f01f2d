"""Code that a test has written itself, and so trusts."""

from torch import nn

from gradscore.models import ModelConfig, build_model, trusting_code


def built(config: ModelConfig) -> nn.Module:
    """The model of a configuration, whose code may run."""
    with trusting_code():
        return build_model(config).model
