"""`python:<file.py or module>:<factory>`: a function that returns the classifier."""

from __future__ import annotations

from torch import nn

from ..code import load_function
from .base import ModelRequest, made


def python_model(request: ModelRequest) -> nn.Module:
    """Runs the code and calls the factory.

    Raises:
        ModelError: the code is not trusted, not what it should be, or fails, or returns something else.
    """
    name, arguments = request.name, request.arguments
    make = load_function(name, arguments, trust_code=request.trust_code, named=request.named, tell=request.tell)
    return made(lambda: make(**arguments), f"python:{name}", arguments)
