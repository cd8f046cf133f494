"""Load the weights that train_mnist.py saved into a new inference executor and use them."""

import json
import sys
from pathlib import Path

import torch
from digits import as_text, load_images
from train_mnist import OUT, Net, accuracy

import poptorch


def main() -> None:
    if not (OUT / "weights.pt").exists():
        sys.exit(f"{OUT / 'weights.pt'} is missing; run train_mnist.py first")
    summary = json.loads((OUT / "summary.json").read_text())
    test_set = load_images(Path(summary["arguments"]["data"]), "t10k")

    model = Net()  # random weights, replaced by the saved ones; weights_only: data, never code
    model.load_state_dict(torch.load(OUT / "weights.pt", weights_only=True))
    executor = poptorch.inferenceModel(model)

    for index in range(3):
        image, label = test_set[index]
        print(as_text(image))
        print(f"classified as {executor(image[None]).argmax()}, it is a {label}")

    result = accuracy(model, test_set)
    print(f"test accuracy: {result:.2%}, at the end of training: {summary['test_accuracy']:.2%}")
    if result != summary["test_accuracy"]:
        sys.exit("the reloaded model is not the trained one")


if __name__ == "__main__":
    main()
