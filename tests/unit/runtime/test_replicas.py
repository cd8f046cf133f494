"""Replicas: their buffers, and parameters with a value per group."""

from __future__ import annotations

import pytest
import torch
from tests.unit.runtime.toy_models import Counter, Regression, data, options, sgd, strict
from torch import nn

import poptorch
from poptorch import CommGroupType, OutputMode, VariableRetrievalMode


class RowSum(nn.Module):
    """A buffer that adds up what its replica saw."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        self.total += x.sum()
        return self.total.clone()


def test_each_replica_has_its_own_buffers_and_the_host_sees_the_first():
    model = RowSum()
    infer = poptorch.inferenceModel(model, options(deviceIterations=2, replicationFactor=2))
    x = torch.tensor([1.0, 10.0, 2.0, 20.0])

    assert infer(x).tolist() == [1.0, 10.0, 3.0, 30.0]
    assert infer(x).tolist() == [4.0, 40.0, 6.0, 60.0]
    assert model.total == 6.0


def test_an_edit_of_a_buffer_on_the_host_reaches_all_replicas():
    model = RowSum()
    infer = poptorch.inferenceModel(model, options(replicationFactor=2))
    infer(torch.tensor([1.0, 10.0]))

    model.total.zero_()

    assert infer(torch.tensor([1.0, 10.0])).tolist() == [1.0, 10.0]


def test_strict_mode_refuses_to_broadcast_modified_buffers():
    with pytest.raises(poptorch.Error, match=r"does not support broadcasting buffers.*total"):
        poptorch.inferenceModel(RowSum(), strict(replicationFactor=2))(torch.ones(2))

    own = strict(replicationFactor=2, broadcastBuffers=False)
    infer = poptorch.inferenceModel(RowSum(), own)
    infer(torch.tensor([1.0, 10.0]))
    assert infer(torch.tensor([1.0, 10.0])).tolist() == [2.0, 20.0]


def test_constant_buffers_are_fine_with_replicas_in_strict_mode():
    model = nn.BatchNorm1d(3).eval()
    x = torch.randn(4, 3)

    assert torch.equal(poptorch.inferenceModel(model, strict(replicationFactor=2))(x), model(x))


def test_replicas_average_their_gradients():
    model, eager = Counter(), Counter()
    eager.load_state_dict(model.state_dict())
    x, target = data(8)

    poptorch.trainingModel(model, options(replicationFactor=4), sgd(model))(x, target)
    eager(x, target)[1].backward()
    sgd(eager).step()

    assert torch.allclose(model.fc.weight, eager.fc.weight, atol=1e-6)


class Shard(nn.Module):
    """A weight of which a replica sees its own columns."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x, target):
        out = x @ self.weight
        return out, poptorch.identity_loss((out - target) ** 2, reduction="sum")


@pytest.mark.parametrize("opts", [options, strict], ids=["default", "strict"])
def test_a_weight_split_over_replicas_trains_like_the_whole(opts):
    """8 replicas: 4 column shards in orthogonal groups of 2, inputs in consecutive groups of 4."""
    torch.manual_seed(1)
    weight, steps = torch.randn(6, 8), 4
    whole = weight.clone().requires_grad_()
    shards = Shard(torch.stack(weight.split(2, dim=1)).contiguous())
    options_ = opts(replicationFactor=8).outputMode(OutputMode.All)
    options_.inputReplicaGrouping(4, CommGroupType.Consecutive)
    step = poptorch.trainingModel(shards, options_, sgd(shards, 0.08))
    step.weight.replicaGrouping(CommGroupType.Orthogonal, 2, VariableRetrievalMode.OnePerGroup)

    for _ in range(steps):
        x = torch.randn(2, 3, 6)
        zeros = torch.zeros(2, 3, 2)
        _, losses = step(x.reshape(6, 6), zeros.reshape(6, 2))

        # Mean over 8 replicas: each shard's gradient is the sum of its 2 replicas, over 8.
        eager_loss = ((x.reshape(6, 6) @ whole) ** 2).sum() / 8
        (gradient,) = torch.autograd.grad(eager_loss, whole)
        with torch.no_grad():
            whole -= 0.08 * gradient
        assert torch.allclose(losses.sum() / 8, eager_loss, rtol=1e-5)

    together = torch.cat(list(shards.weight), dim=1)
    assert torch.allclose(together, whole, atol=1e-6)
    assert list(step.per_replica_params) == ["weight"]


@pytest.mark.parametrize(
    ("kind", "shards", "groups"),
    [
        (CommGroupType.Consecutive, 2, [0, 0, 1, 1]),
        (CommGroupType.Orthogonal, 2, [0, 1, 0, 1]),
        (CommGroupType.NoGrouping, 1, [0, 1, 2, 3]),
    ],
)
def test_each_replica_sees_the_value_of_its_group(kind, shards, groups):
    class Value(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.arange(1.0 + max(groups)).reshape(-1, 1))

        def forward(self, x):
            return x + self.value

    infer = poptorch.inferenceModel(Value(), options(replicationFactor=4))
    infer.value.replicaGrouping(kind, shards, VariableRetrievalMode.OnePerGroup)

    assert infer(torch.zeros(4)).tolist() == groups


def test_all_is_no_grouping():
    model = Regression()
    model.scale = nn.Parameter(torch.ones(2))
    infer = poptorch.inferenceModel(model, options(replicationFactor=2))

    infer.scale.replicaGrouping(CommGroupType.All, 0, VariableRetrievalMode.OnePerGroup)

    assert infer(torch.ones(2, 3)).shape == (2, 2)


def test_grouping_is_refused_for_scalars_and_after_compilation():
    model = Regression()
    model.scalar, model.row = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(2))
    infer = poptorch.inferenceModel(model, options(replicationFactor=2))
    choice = (CommGroupType.NoGrouping, 1, VariableRetrievalMode.OnePerGroup)

    with pytest.raises(poptorch.Error, match="scalar"):
        infer.scalar.replicaGrouping(*choice)
    infer(torch.ones(2, 3))
    with pytest.raises(poptorch.Error, match="after compilation"):
        infer.row.replicaGrouping(*choice)


def test_a_leading_dimension_that_is_not_the_number_of_groups_is_refused():
    model = Regression()
    model.row = nn.Parameter(torch.ones(3))
    infer = poptorch.inferenceModel(model, options(replicationFactor=2))
    infer.row.replicaGrouping(CommGroupType.NoGrouping, 1, VariableRetrievalMode.OnePerGroup)

    with pytest.raises(poptorch.Error, match=r"'row'.*2 groups"):
        infer(torch.ones(2, 3))


@pytest.mark.parametrize("opts", [options, strict], ids=["default", "strict"])
def test_the_values_of_all_replicas_are_brought_back_if_there_is_room_for_them(opts):
    class Scale(nn.Module):
        def __init__(self, rows):
            super().__init__()
            self.value = nn.Parameter(torch.tensor(rows).reshape(-1, 1))

        def forward(self, x):
            return poptorch.identity_loss((self.value * x).sum(), "none")

    def trained(rows, mode):
        model = Scale(rows)
        step = poptorch.trainingModel(model, opts(replicationFactor=4), sgd(model))
        step.value.replicaGrouping(CommGroupType.Consecutive, 2, mode)
        for _ in range(3):
            step(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        return model.value.flatten().tolist()

    one_per_group = trained([1.0, 2.0], VariableRetrievalMode.OnePerGroup)
    # Replicas of a group begin with the value of its first one.
    all_replicas = trained([1.0, 7.0, 2.0, 9.0], VariableRetrievalMode.AllReplicas)

    assert all_replicas == [value for value in one_per_group for _ in range(2)]
