"""Scripts of Lightning 1.x run as they are, with the Trainer of pantile.lightning."""

from __future__ import annotations

import pytest
import torch
from tests.lightning.models import Classifier, Optimizer, loader

import poptorch
from pantile.lightning import IPUPlugin, IPUStrategy, Trainer

pytestmark = pytest.mark.usefixtures("reference")


def test_ipus_and_a_plugin_train() -> None:
    model = Optimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    plugin = IPUPlugin(device_iterations=3, convert_model_to_half=True)
    trainer = Trainer(
        ipus=2,
        plugins=plugin,
        max_epochs=1,
        checkpoint_callback=False,
        weights_summary=None,
        progress_bar_refresh_rate=0,
        logger=False,
    )

    trainer.fit(model, loader(24, 2))

    assert trainer.strategy is plugin
    assert isinstance(plugin, IPUStrategy)
    assert (trainer.num_devices, trainer.num_training_batches) == (2, 2)
    assert plugin.optimizer_updates == 6
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert trainer.precision == "16-true"


def test_options_for_training_and_inference_are_taken() -> None:
    training = poptorch.Options().deviceIterations(2).replicationFactor(2)
    inference = poptorch.Options().deviceIterations(4)
    plugin = IPUPlugin(training_opts=training, inference_opts=inference)
    trainer = Trainer(
        ipus=1, plugins=[plugin], max_epochs=1, logger=False, checkpoint_callback=False
    )

    trainer.fit(Classifier(), loader(24, 2), loader(16, 2))

    assert trainer.strategy.training_opts is training
    assert trainer.num_training_batches == 3
    assert trainer.num_val_batches == [2]
