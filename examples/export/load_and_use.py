"""Load both files in a new process: classify some points, then train on."""

import sys

import torch
from classifier import CENTRES, samples
from train_and_export import BATCH, ITERATIONS, OUT

import poptorch


def main() -> None:
    if not (OUT / "serving.poptorch").exists():
        sys.exit(f"{OUT / 'serving.poptorch'} is missing; run train_and_export.py first")
    serving = poptorch.load(OUT / "serving.poptorch")
    points = torch.cat([CENTRES, torch.zeros(1, 2)])
    print("centres are classified as", serving(points).argmax(dim=1).tolist()[:3])

    training = poptorch.load(OUT / "training.poptorch")
    points, labels = samples(BATCH * ITERATIONS)
    before = training(points, labels)[1]
    for _ in range(20):
        training(points, labels)
    print(f"trained on: loss {before:.3f} -> {training(points, labels)[1]:.3f}")


if __name__ == "__main__":
    main()
