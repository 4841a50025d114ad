"""A training script in ten lines. Start a daemon, then this, as often as you like:

python -m examples.quickstart.make_photos
loaderd serve --config configs/quickstart.yaml
python -m examples.quickstart.train
"""

from __future__ import annotations

import torch
from torch import nn

import loaderd


def make_model(classes: int = 10) -> nn.Module:
    """A small convolutional network that a single CPU core can train."""
    return nn.Sequential(
        nn.AvgPool2d(4),
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, classes),
    )


def prepare(images: torch.Tensor) -> torch.Tensor:
    """uint8 (batch, height, width, 3) to float32 (batch, 3, height, width) in -1 to 1."""
    return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)


def main() -> None:
    """Trains for two epochs."""
    model, loss_of = make_model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with loaderd.connect("train") as loader:
        for epoch in range(2):
            for images, labels in loader:
                loss = loss_of(model(prepare(images)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.3f}, {loader.stats()}")


if __name__ == "__main__":
    main()
