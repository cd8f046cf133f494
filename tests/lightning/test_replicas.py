"""Replicas, device iterations and pipelines under the Trainer."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BasePredictionWriter
from tests.lightning.models import BatchNorm, Classifier, Gan, WithMetrics, loader
from tests.lightning.test_parity import Case, Pairs, assert_same, fit
from torch.utils.data import BatchSampler, DataLoader

import pantile.lightning
import poptorch

pytestmark = pytest.mark.usefixtures("reference")


@pytest.mark.parametrize("mode", ["split", "fused"])
def test_four_replicas_train_like_a_batch_four_times_as_large(mode: str) -> None:
    strategy = pantile.lightning.IPUStrategy(step_mode=mode)

    mine = fit(Case(train=partial(loader, 24, 2)), "ipu", devices=4, strategy=strategy)

    assert mine[1].num_devices == 4
    assert mine[1].strategy.mode == mode
    assert_same(mine, fit(Case(train=partial(loader, 24, 8)), "cpu"), 1e-6)


def test_metrics_see_the_samples_of_all_replicas() -> None:
    mine = fit(Case(WithMetrics, train=partial(loader, 24, 2)), "ipu", devices=3)

    assert_same(mine, fit(Case(WithMetrics, train=partial(loader, 24, 6)), "cpu"), 1e-6)


def test_manual_optimisation_with_replicas_sees_one_large_batch() -> None:
    mine = fit(Case(Gan, train=partial(loader, 24, 2)), "ipu", devices=2)

    assert_same(mine, fit(Case(Gan, train=partial(loader, 24, 4)), "cpu"), 1e-6)


def test_device_iterations_are_updates() -> None:
    pl.seed_everything(3)
    cpu = fit(Case(train=partial(loader, 24, 4)), "cpu")
    strategy = pantile.lightning.IPUStrategy(device_iterations=3)

    module, trainer = fit(Case(train=partial(loader, 24, 4)), "ipu", strategy=strategy)

    assert trainer.global_step * 3 == cpu[1].global_step
    assert strategy.optimizer_updates == cpu[1].global_step
    torch.testing.assert_close(module.state_dict(), cpu[0].state_dict(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_device_iterations_clip_each_update(algorithm: str) -> None:
    case = Case(trainer={"gradient_clip_val": 0.02, "gradient_clip_algorithm": algorithm})
    cpu, _ = fit(case, "cpu")
    strategy = pantile.lightning.IPUStrategy(device_iterations=3)

    module, _ = fit(case, "ipu", strategy=strategy)

    assert strategy.mode == "fused"
    torch.testing.assert_close(module.state_dict(), cpu.state_dict(), rtol=1e-6, atol=1e-7)


def test_options_win_and_accumulate_in_the_program() -> None:
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(3)
    strategy = pantile.lightning.IPUStrategy(training_opts=options)
    case = Case(train=partial(loader, 24, 2), val=partial(loader, 8))

    module, trainer = fit(case, "ipu", strategy=strategy)

    cpu, _ = fit(Case(train=partial(loader, 24, 6)), "cpu")
    assert trainer.num_training_batches == 2
    torch.testing.assert_close(module.state_dict(), cpu.state_dict(), rtol=1e-6, atol=1e-7)


class Indices(BasePredictionWriter):
    """Is told which samples a prediction is of."""

    def __init__(self, interval: Any) -> None:
        super().__init__(interval)
        self.seen: list[Any] = []

    def write_on_batch_end(
        self, trainer: Any, module: Any, found: Any, indices: Any, *_: Any
    ) -> None:
        self.seen.append(list(indices))


def test_predicts_every_sample_of_an_incomplete_batch_in_order() -> None:
    model, writer = Classifier(), Indices("batch")
    trainer = pl.Trainer(
        accelerator="ipu", devices=4, logger=False, enable_progress_bar=False, callbacks=[writer]
    )

    found = trainer.predict(model, loader(50, 4))

    model.eval()
    with torch.no_grad():
        expected = model(loader(50).dataset.tensors[0]).softmax(-1)
    torch.testing.assert_close(torch.cat(found), expected)
    assert [len(part) for part in found] == [16, 16, 16, 2]
    assert writer.seen[1] == list(range(16, 32))


def test_a_batch_sampler_of_ones_own_feeds_replicas() -> None:
    data = DataLoader(loader().dataset, batch_sampler=Pairs())
    flat = DataLoader(
        loader().dataset, batch_sampler=BatchSampler([i for b in Pairs() for i in b], 6, False)
    )

    mine = fit(Case(train=lambda: data), "ipu", devices=2)

    assert_same(mine, fit(Case(train=lambda: flat), "cpu"), 1e-6)


def test_a_poptorch_loader_is_passed_through() -> None:
    options = poptorch.Options().replicationFactor(2)
    data = poptorch.DataLoader(options, loader().dataset, batch_size=3)
    strategy = pantile.lightning.IPUStrategy(training_opts=options)

    mine = fit(Case(train=lambda: data), "ipu", devices=2, strategy=strategy)

    assert isinstance(mine[1].train_dataloader, poptorch.DataLoader)
    assert mine[1].train_dataloader.dataset is data.dataset
    assert_same(mine, fit(Case(train=partial(loader, 24, 6)), "cpu"), 1e-6)


def test_the_samples_that_are_left_out_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    _, trainer = fit(Case(train=partial(loader, 23, 2)), "ipu", devices=4, max_epochs=1)

    assert trainer.num_training_batches == 2
    assert "7 samples at the end of a training epoch" in caplog.text


def test_each_replica_has_batch_norm_statistics_of_its_own_rows() -> None:
    module, _ = fit(Case(BatchNorm, train=partial(loader, 8, 4)), "ipu", devices=2, max_epochs=1)

    # The host sees those of replica 0: the first four of eight rows.
    pl.seed_everything(3)
    fresh = BatchNorm()
    fresh(loader(8).dataset.tensors[0][:4])
    torch.testing.assert_close(module.net[1].running_mean, fresh.net[1].running_mean)


class Pipelined(Classifier):
    """Two stages."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("first", ipu_id=0):
            x = self.net[1](self.net[0](x))
        with poptorch.Block("second", ipu_id=1):
            result: torch.Tensor = self.net[2](x)
        return result


def test_a_pipelined_module_trains_like_a_plain_one() -> None:
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(3)
    case = Case(Pipelined, train=partial(loader, 24, 2))
    strategy = pantile.lightning.IPUStrategy(training_opts=options)

    module, _ = fit(case, "ipu", strategy=strategy)

    cpu, _ = fit(Case(train=partial(loader, 24, 6)), "cpu")
    torch.testing.assert_close(module.state_dict(), cpu.state_dict(), rtol=1e-6, atol=1e-7)


def test_shuffled_data_with_replicas_is_every_sample_once() -> None:
    seen: list[Any] = []

    class Sees(Classifier):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            seen.append(batch[0][:, 0])

    fit(Case(Sees, train=partial(loader, 24, 3, shuffle=True)), "ipu", devices=4, max_epochs=1)

    expected = loader(24).dataset.tensors[0][:, 0]
    assert torch.cat(seen).sort()[0].tolist() == expected.sort()[0].tolist()
    assert [len(part) for part in seen] == [12, 12]


class Batches:
    """Not a DataLoader."""

    def __iter__(self) -> Any:
        yield from loader(24, 4)


def test_the_batches_of_any_iterable_are_joined() -> None:
    mine = fit(Case(train=Batches), "ipu", devices=2)

    assert_same(mine, fit(Case(train=partial(loader, 24, 8)), "cpu"), 1e-6)


def test_options_decide_and_are_found_where_scripts_look_for_them() -> None:
    training, inference = poptorch.Options(), poptorch.Options()
    training.deviceIterations(2).replicationFactor(2)
    inference.deviceIterations(3)
    strategy = pantile.lightning.IPUStrategy(training_opts=training, inference_opts=inference)
    seen: list[Any] = []

    class Looks(pl.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            seen.extend(trainer.strategy.poptorch_models.items())

    case = Case(train=partial(loader, 24, 2), val=partial(loader, 12, 2))
    case.callbacks = lambda: [Looks()]
    _, trainer = fit(case, "ipu", strategy=strategy, max_epochs=1)

    assert [stage.value for stage, _ in seen] == ["train", "validate", "sanity_check"]
    iterations = [model._options.toDict()["device_iterations"] for _, model in seen]
    assert iterations == [2, 3, 3]
    assert isinstance(trainer.train_dataloader, poptorch.DataLoader)
    assert trainer.train_dataloader.options is training
    assert trainer.train_dataloader.combinedBatchSize == 8
    assert (len(trainer.train_dataloader), len(trainer.val_dataloaders)) == (3, 2)


def test_accumulation_is_among_the_options_of_training() -> None:
    _, trainer = fit(Case(), "ipu", accumulate_grad_batches=3, max_epochs=1)

    options = next(iter(trainer.strategy.poptorch_models.values())).options
    assert options.Training.toDict()["gradient_accumulation"] == 3
