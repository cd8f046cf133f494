"""The whole product in under a minute: one model through every part of it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import poptorch


class Net(nn.Module):
    """A convolution, batch statistics, dropout, two pipeline blocks, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = poptorch.BeginBlock(nn.Conv2d(1, 4, 3), "features", ipu_id=0)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.head = poptorch.BeginBlock(nn.Linear(4 * 36, 3), "head", ipu_id=1)

    def forward(self, x, labels=None):
        x = self.drop(F.relu(self.norm(self.conv(x))))
        out = self.head(x.flatten(1))
        return out if labels is None else (out, F.cross_entropy(out, labels))


class Images(torch.utils.data.Dataset):
    """Three kinds of images: the brightest third is the label."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.rand(size, 1, 8, 8, generator=generator)
        self.y = torch.randint(0, 3, (size,), generator=generator)
        for image, label in zip(self.x, self.y, strict=True):
            image[0, :, 2 * label : 2 * label + 3] += 1.0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def options(accumulation: int = 1) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(accumulation)
    return opts


def test_a_training_step_is_eagers_bit_for_bit():
    model = Net()
    eager = copy.deepcopy(model)
    optimizer = torch.optim.Adam(eager.parameters(), lr=0.01)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    step = poptorch.trainingModel(model, options(), adam)

    for rows in (8, 8, 5):
        x, y = torch.randn(rows, 1, 8, 8), torch.randint(0, 3, (rows,))
        state = torch.get_rng_state()
        out, loss = step(x, y)
        torch.set_rng_state(state)
        expected = eager(x, y)
        optimizer.zero_grad()
        expected[1].backward()
        optimizer.step()
        assert torch.equal(out, expected[0])
        assert torch.equal(loss, expected[1])

    for name, value in model.state_dict().items():
        assert torch.equal(value, eager.state_dict()[name])


def test_a_model_learns_with_a_loader_replicas_accumulation_and_a_schedule():
    opts = options(accumulation=2).deviceIterations(2).replicationFactor(2).randomSeed(1)
    opts.outputMode(poptorch.OutputMode.All)
    loader = poptorch.DataLoader(opts, Images(512), batch_size=8, shuffle=True)
    model = Net()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    step = poptorch.trainingModel(model, opts, optimizer)

    for _ in range(8):
        for x, y in loader:
            _, loss = step(x, y)
        schedule.step()
        step.setOptimizer(optimizer)

    assert loss.shape == (8,)
    model.eval()
    infer = poptorch.inferenceModel(model, options())
    test = Images(100)
    assert (infer(test.x).argmax(1) == test.y).float().mean() > 0.9


def test_strict_mode_refuses_what_hardware_would_refuse():
    x, y = torch.randn(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)

    with pytest.raises(poptorch.Error, match="gradientAccumulation must be greater than"):
        poptorch.trainingModel(Net(), options().strict(True))(x, y)

    model = Net()
    step = poptorch.trainingModel(model, options(accumulation=3).strict(True))
    step(x.repeat(3, 1, 1, 1), y.repeat(3))
    with pytest.raises(poptorch.Error, match="Shape mismatch for x"):
        step(x, y)
    assert model.norm.num_batches_tracked == 3
    model.destroy()


def test_an_error_names_the_line_and_the_way_out():
    class Branches(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x

    with pytest.raises(poptorch.Error, match=r"test_tiny\.py") as error:
        poptorch.inferenceModel(Branches(), options())(torch.ones(2))

    assert "torch.where" in error.value.fix


def test_the_compiled_program_can_be_read():
    infer = poptorch.inferenceModel(Net().eval(), options())
    infer(torch.randn(2, 1, 8, 8))

    text = str(infer._executable.program)

    assert "conv" in text
    assert "head.weight" in text
