"""Models with extra columns, and what these should be by one backward pass per sample."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradscore.config import FeaturesConfig
from gradscore.extractor import Extractor

COLUMNS = ["output_gradient_norm", "activation_rate", "gradient_cosine"]
LOSS_VALUES = {
    "pseudo_label": lambda logits: F.cross_entropy(logits, logits.argmax(1)),
    "uniform": lambda logits: -logits.log_softmax(1).mean(),
}
K = 3


class Shared(nn.Module):
    """A layer and an activation used twice, functions called without modules, and time before samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.twice = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).transpose(0, 1)
        y = self.act(self.twice(self.act(self.twice(y))))
        return self.last(F.relu(y.mean(0) - 0.1) + y.sum(0).relu())


class Folded(nn.Module):
    """Samples and positions on one axis, positions first."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.last = nn.Linear(4, K)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.body(x.transpose(0, 1).reshape(-1, 5)))
        return self.last(y.reshape(x.shape[1], len(x), 4).mean(0))


def conv() -> nn.Module:
    body = [nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(36, K))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution": (conv, (1, 5, 5)),
    "shared": (Shared, (6, 5)),
    "folded": (Folded, (6, 5)),
}
GRANULARITIES = ["parameter", "module", "model"]


def made(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = make().eval().double()
        return model, torch.randn(8, *shape, dtype=torch.float64)


def extractor(model: nn.Module, **features: object) -> Extractor:
    settings = FeaturesConfig(**{"losses": list(LOSS_VALUES), "statistics": ["l2"], "columns": COLUMNS, **features})
    return Extractor(model, num_classes=K, features=settings)


def with_means(model: nn.Module, fit: Sequence[Tensor], **features: object) -> Extractor:
    found = extractor(model, **features)
    sums = found.class_sums()
    _ = [found.add_to(sums, batch) for batch in fit]
    found.compare_with(sums.finished())
    return found


def table(found: Extractor, images: Tensor, **options: Tensor) -> pd.DataFrame:
    return pd.DataFrame(found.values(images, **options), columns=found.names)


def watched(model: nn.Module, image: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """Logits of one image, and copies of the outputs of its modules by name that have gradients of their own."""
    outputs: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], Tensor]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
            outputs.setdefault(name, []).append(output)
            return output.clone()

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    logits = model(image.unsqueeze(0))
    _ = [handle.remove() for handle in handles]
    return logits, outputs


def gradients(model: nn.Module, loss: str, images: Tensor) -> list[dict[str, np.ndarray]]:
    names = [name for name, _ in model.named_parameters()]
    return [
        dict(
            zip(
                names,
                (
                    each.numpy().ravel()
                    for each in torch.autograd.grad(LOSS_VALUES[loss](model(image[None])), list(model.parameters()))
                ),
                strict=True,
            )
        )
        for image in images
    ]


def norm_of(model: nn.Module, loss: str, image: Tensor, layer: str) -> float:
    logits, outputs = watched(model, image)
    found = torch.autograd.grad(LOSS_VALUES[loss](logits), outputs[layer])
    return float(torch.cat([each.flatten() for each in found]).norm())


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    size = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / size) if size else 0.0


def joined(gradient: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([gradient[name] for name in names])


def hand_made(model: nn.Module, loss: str, fit: Tensor, images: Tensor, names: Sequence[str]) -> list[float]:
    """Cosines with the mean gradient of other fit samples of the same predicted class."""
    own, others = gradients(model, loss, images), gradients(model, loss, fit)
    predicted, of_fit = model(images).argmax(1), model(fit).argmax(1)
    found = []
    for image, label, gradient in zip(images, predicted, own, strict=True):
        same = [
            joined(each, names)
            for each, theirs, other in zip(others, of_fit, fit, strict=True)
            if theirs == label and not torch.equal(other, image)
        ]
        found.append(cosine(joined(gradient, names), np.mean(same, axis=0)) if same else 0.0)
    return found
