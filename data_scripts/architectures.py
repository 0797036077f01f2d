"""The classifiers of the example configurations, as factories for `model.source: python:<file>:<factory>`."""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn


def digits_cnn(num_classes: int) -> nn.Module:
    """A small network for 8x8 grey images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )


def lenet(num_classes: int) -> nn.Module:
    """A network of LeNet's size for 28x28 grey images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


class TwoConvolutions(nn.Module):
    """What both kinds of blocks have: two 3x3 convolutions, each with batch norm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Takes the number of input and output channels and the stride of the first convolution."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def residual(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to what is added to the shortcut, (N, outputs, H / stride, W / stride)."""
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))


class CifarBlock(TwoConvolutions):
    """The shortcut takes every second pixel and pads channels with zeros where widths change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Takes the number of input and output channels and the stride of the first convolution."""
        super().__init__(inputs, outputs, stride)
        self.stride = stride
        self.padding = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y = self.residual(x)
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(y + shortcut)


class CifarResNet(nn.Module):
    """ResNet for 32x32 images: He et al. 2016, "Deep residual learning for image recognition", section 4.2."""

    def __init__(self, blocks: int, num_classes: int) -> None:
        """Takes the number of blocks in each of the three stages and the number of classes."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*[CifarBlock(16, 16, 1) for _ in range(blocks)])
        self.layer2 = nn.Sequential(CifarBlock(16, 32, 2), *[CifarBlock(32, 32, 1) for _ in range(blocks - 1)])
        self.layer3 = nn.Sequential(CifarBlock(32, 64, 2), *[CifarBlock(64, 64, 1) for _ in range(blocks - 1)])
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 32, 32) to logits (N, K)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


class WideCifarBlock(TwoConvolutions):
    """The shortcut is a 1x1 convolution where widths change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Takes the number of input and output channels and the stride of the first convolution."""
        super().__init__(inputs, outputs, stride)
        wider = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(
            *([nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)] if wider else [])
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        return F.relu(self.residual(x) + self.shortcut(x))


class OpenOodResNet18(nn.Module):
    """The ResNet-18 for 32x32 images of OpenOOD, by the names of its published weights."""

    def __init__(self, num_classes: int) -> None:
        """Takes the number of classes."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for stage, (inputs, outputs) in enumerate(pairwise(widths), start=1):
            blocks = [WideCifarBlock(inputs, outputs, 1 if stage == 1 else 2), WideCifarBlock(outputs, outputs, 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
        self.fc = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 32, 32) to logits (N, K)."""
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def openood_resnet18(num_classes: int = 10) -> nn.Module:
    """ResNet-18 for 32x32 images as OpenOOD has it."""
    return OpenOodResNet18(num_classes)


def cifar_resnet20(num_classes: int = 10) -> nn.Module:
    """ResNet-20 for CIFAR."""
    return CifarResNet(3, num_classes)


def cifar_resnet32(num_classes: int = 10) -> nn.Module:
    """ResNet-32 for CIFAR."""
    return CifarResNet(5, num_classes)
