"""Train a small classifier, then write it to two files: one to train on, one to serve."""

from pathlib import Path

import torch
from classifier import Classifier, samples

import poptorch

OUT = Path(__file__).resolve().parent / "out"
STEPS, BATCH, ITERATIONS = 30, 32, 8


def main() -> None:
    options = poptorch.Options().randomSeed(7).deviceIterations(ITERATIONS)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    for step in range(STEPS):
        _, loss = training(*samples(BATCH * ITERATIONS))
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss:.3f}")
    training.save(OUT / "training.poptorch")

    model.eval()  # no dropout from here on
    serving = poptorch.inferenceModel(model)
    serving.compileAndExport(OUT / "serving.poptorch", torch.zeros(4, 2))
    for file in sorted(OUT.iterdir()):
        print(f"wrote {file.name}, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
