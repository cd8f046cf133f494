"""Train a small CNN on MNIST on software IPUs, test it, and classify one digit.

The images next to this file are a quarter of MNIST; --data or MNIST_DIR points to the full set.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from digits import as_text, load_images
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

import poptorch

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"


class Net(nn.Module):
    """Two convolutions, two linear layers. Given labels it also returns the loss to train on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3)
        self.hidden, self.output = nn.Linear(800, 64), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None):
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        scores = self.output(F.relu(self.hidden(x.flatten(1))))
        return scores if labels is None else (scores, F.cross_entropy(scores, labels))


def train(model: Net, data: TensorDataset, args: argparse.Namespace) -> dict:
    """Train the model; return what the run summary says about it.

    One call of the executor runs D weight updates; each averages the gradients of R replicas, and
    each replica sees its own B images. So one call consumes B * D * R images.
    """
    options = poptorch.Options().randomSeed(args.seed).replicationFactor(args.replicas)
    options.deviceIterations(args.device_iterations)
    options.outputMode(poptorch.OutputMode.All)  # return the loss of every update, not the last
    options.enableProfiling(str(OUT / "report"))  # would it fit an IPU, where would the time go
    loader = poptorch.DataLoader(options, data, batch_size=args.batch_size, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.4)

    executor = poptorch.trainingModel(model, options, optimizer)
    executor.compile(*next(iter(loader)))  # optional: the first call would do it
    compiled = executor.compilationTime().total_seconds()
    print(f"{options.engine_name} engine, {args.replicas} replicas, compiled in {compiled:.2f} s")
    start, seen = time.perf_counter(), 0
    for epoch in range(args.epochs):
        bar = tqdm(loader, desc=f"epoch {epoch + 1}/{args.epochs}", unit=" calls")
        for images, labels in bar:
            _, loss = executor(images, labels)
            seen += len(images)
            rate = seen / (time.perf_counter() - start)
            bar.set_postfix_str(f"loss {loss.mean():.3f}, {rate:,.0f} images/s")
        schedule.step()
        executor.setOptimizer(optimizer)  # take over the new learning rate
    executor.detachFromDevice()  # the report is complete
    rate = round(seen / (time.perf_counter() - start))
    return {"engine": options.engine_name, "compile_seconds": compiled, "images_per_second": rate}


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """The share of images an inference executor of the model gets right."""
    options = poptorch.Options().deviceIterations(10)
    executor = poptorch.inferenceModel(model, options)
    loader = poptorch.DataLoader(options, data, batch_size=50, drop_last=False)
    right = sum((executor(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flag = parser.add_argument
    folder = os.environ.get("MNIST_DIR", HERE / "data")
    flag("--data", type=Path, default=folder, metavar="DIR", help="folder of the MNIST files")
    flag("--epochs", type=int, default=4)
    flag("--batch-size", type=int, default=16, help="images one replica sees at once")
    flag("--replicas", type=int, default=2)
    flag("--device-iterations", type=int, default=10, help="weight updates in one call")
    flag("--lr", type=float, default=0.003, help="learning rate of the first epoch")
    flag("--seed", type=int, default=0)
    args = parser.parse_args()

    test_set = load_images(args.data, "t10k")
    torch.set_num_threads(1)  # a micro-batch of 16 images is too small to share between cores
    torch.manual_seed(args.seed)
    model = Net()
    summary = train(model, load_images(args.data, "train"), args)
    summary["test_accuracy"] = accuracy(model, test_set)
    print(f"test accuracy: {summary['test_accuracy']:.2%} of {len(test_set)} images")
    image, label = test_set[0]
    digit = poptorch.inferenceModel(model)(image[None]).argmax()
    print(f"{as_text(image)}\nclassified as {digit}, it is a {label}")

    OUT.mkdir(exist_ok=True)
    torch.save(model.state_dict(), OUT / "weights.pt")
    summary["arguments"] = {name: str(value) for name, value in vars(args).items()}
    (OUT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"wrote weights.pt and summary.json to {OUT}")
    print(f"report: open {OUT / 'report' / 'training' / 'report.html'} in a browser")


if __name__ == "__main__":
    main()
