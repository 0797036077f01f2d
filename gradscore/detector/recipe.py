"""Whether a recipe builds the model it should."""

from __future__ import annotations

from torch import nn

from ..errors import ModelError
from ..models import ModelConfig, build_model, weights_sha256


def check_recipe(recipe: ModelConfig, model: nn.Module) -> None:
    """Builds the model and compares the weights.

    Raises:
        ModelError: they do not fit, or it cannot be built.
    """
    built = build_model(recipe, trust_code=True)
    try:
        built.load_state_dict(model.state_dict())
        same = weights_sha256(built) == weights_sha256(model)
        reason = "its weights have other types"
    except RuntimeError as error:
        same, reason = False, str(error).splitlines()[-1].strip()
    if not same:
        raise ModelError(f"recipe {recipe.source!r} does not build this model: {reason}; correct it, or leave it out")
