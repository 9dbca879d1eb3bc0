"""The models of the studies. Imports torch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

CLASSES = 10
FLOWERS = 102  # classes of torchvision's Flowers102


def mlp() -> nn.Module:
    """669,706 parameters: flatten, dense, dropout, dense."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, CLASSES),
    )


def small_mlp() -> nn.Module:
    """101,770 parameters: flatten, dense ReLU of 128, dropout, softmax."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, CLASSES)
    )


def _block(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]


def small_cnn() -> nn.Module:
    """402,442 parameters."""
    return nn.Sequential(
        *_block(1, 32),
        nn.Flatten(),
        *(nn.Linear(32 * 14 * 14, 64), nn.ReLU()),
        nn.Linear(64, CLASSES),
    )


def large_cnn() -> nn.Module:
    """4,104,202 parameters by the study's list of layers; its text says 2,636,554."""
    return nn.Sequential(
        *_block(1, 128),
        *_block(128, 256),
        *_block(256, 512),
        nn.Flatten(),
        *(nn.Linear(512 * 3 * 3, 512), nn.ReLU()),
        *(nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, CLASSES),
    )


class _InvertedResidual(nn.Module):
    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        layers = _conv(before, wide, 1) if expansion > 1 else []
        layers += _conv(wide, wide, 3, stride, groups=wide)
        layers += [nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)]
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


def _conv(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(after), nn.ReLU6()]


def mobilenet_v2(classes: int = FLOWERS) -> nn.Module:
    """Sandler et al. (2018), "MobileNetV2", table 2; 2,354,534 parameters with 102 classes."""
    layers, channels = _conv(3, 32, 3, stride=2), 32
    for expansion, after, count, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for number in range(count):
            layers.append(
                _InvertedResidual(channels, after, stride if number == 0 else 1, expansion)
            )
            channels = after
    layers += [*_conv(channels, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(1280, classes))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "small-mlp": small_mlp,
    "small-cnn": small_cnn,
    "large-cnn": large_cnn,
    "mobilenetv2": mobilenet_v2,
}
