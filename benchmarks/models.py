"""The models that are measured; plain torch, so that a peer's environment can build them too."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.stride, self.extra = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra, self.extra))
        return F.relu(y + shortcut)


class ResNet(nn.Module):
    """A residual network for 32x32 images."""

    def __init__(self, widths: tuple[int, ...], depth: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0])
        inputs = [widths[0], *[width for width in widths for _ in range(depth)]]
        steps = [2 if level and not block else 1 for level in range(len(widths)) for block in range(depth)]
        self.blocks = nn.Sequential(*[Block(i, o, s) for i, o, s in zip(inputs, inputs[1:], steps, strict=False)])
        self.linear = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


def separable(inputs: int, outputs: int, stride: int) -> nn.Module:
    """A 3x3 convolution of each channel by itself, and one of all channels at each pixel."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


def mobilenet() -> nn.Module:
    """MobileNet of half width for 32x32 images; Howard and others 2017, table 1, without the first two strides."""
    widths = [16, 32, 64, 64, 128, 128, *[256] * 6, 512, 512]
    strides = [1, 1, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]
    blocks = [separable(i, o, s) for i, o, s in zip(widths, widths[1:], strides, strict=False)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class VisionTransformer(nn.Module):
    """64 patches of 4x4 pixels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(0.02 * torch.randn(1, 64, width))
        layers = [
            nn.TransformerEncoderLayer(width, 3, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
            for _ in range(depth)
        ]
        self.layers, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(x)).mean(1))


MODELS = {
    "MLP 3072-1024-1024-10": mlp,
    "LeNet 32-64": lenet,
    "ResNet-20": lambda: ResNet((16, 32, 64), 3),
    "ResNet-56": lambda: ResNet((16, 32, 64), 9),
    "MobileNet 0.5": mobilenet,
    "ResNet-18": lambda: ResNet((64, 128, 256, 512), 2),
    "ViT 192x6": lambda: VisionTransformer(192, 6),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """A model with weights that every environment draws alike, batch norm used to some data, in eval mode."""
    torch.manual_seed(seed)
    model = MODELS[name]()
    with torch.no_grad():
        model.train()(torch.randn(64, 3, 32, 32))
    return model.eval()


def images(samples: int, seed: int = 1) -> Tensor:
    """A batch of random 32x32 images."""
    return torch.randn(samples, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
