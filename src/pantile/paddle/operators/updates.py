"""The update operators that `optimizer.minimize` appends, with Paddle's formulas.

Each reads a parameter, its gradient, the learning rate and its own state, and writes the new
parameter and state. What is decayed or clipped is said by ordinary operators before them.
"""

from __future__ import annotations

import torch

from pantile.paddle.call import Call, Table, Tensor


def _operands(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Parameter, gradient and learning rate in the type of the computation."""
    master = call.optional("MasterParam")
    parameter = call.tensor("Param") if master is None else master
    if parameter.dtype in (torch.float16, torch.bfloat16):
        parameter = parameter.float()
    rate = call.tensor("LearningRate").reshape(()).to(parameter.dtype)
    return parameter, call.tensor("Grad").to(parameter.dtype), rate


def _put_parameter(call: Call, parameter: Tensor) -> None:
    call.put(parameter.to(call.tensor("Param").dtype), "ParamOut")
    call.put(parameter, "MasterParamOut")


def _sgd(call: Call) -> None:
    parameter, gradient, rate = _operands(call)
    _put_parameter(call, parameter - rate * gradient)


def _momentum(call: Call) -> None:
    parameter, gradient, rate = _operands(call)
    factor, rescale = call.number("mu"), call.number("rescale_grad", 1.0)
    if rescale != 1.0:
        gradient = gradient * rescale
    if call.text("regularization_method", "") == "l2_decay":
        gradient = gradient + call.number("regularization_coeff", 0.0) * parameter
    velocity = call.tensor("Velocity").to(parameter.dtype) * factor + gradient
    if call.flag("use_nesterov"):
        _put_parameter(call, parameter - (gradient + factor * velocity) * rate)
    else:
        _put_parameter(call, parameter - rate * velocity)
    call.put(velocity.to(call.tensor("Velocity").dtype), "VelocityOut")


def _moments(call: Call, gradient: Tensor) -> tuple[Tensor, Tensor]:
    beta1, beta2 = call.number("beta1", 0.9), call.number("beta2", 0.999)
    first = beta1 * call.tensor("Moment1") + (1 - beta1) * gradient
    second = beta2 * call.tensor("Moment2") + (1 - beta2) * gradient * gradient
    if call.flag("half_moment1"):
        first = first.half().to(first.dtype)
    if call.flag("half_moment2"):
        second = second.half().to(second.dtype)
    call.put(first.to(call.tensor("Moment1").dtype), "Moment1Out")
    call.put(second.to(call.tensor("Moment2").dtype), "Moment2Out")
    call.put(call.tensor("Beta1Pow") * beta1, "Beta1PowOut")
    call.put(call.tensor("Beta2Pow") * beta2, "Beta2PowOut")
    return first, second


def _corrections(call: Call) -> tuple[Tensor, Tensor]:
    """1 - beta^t of both betas; ones for optimizers without bias correction."""
    powers = (call.tensor(slot).reshape(()) for slot in ("Beta1Pow", "Beta2Pow"))
    if call.flag("without_bias"):
        first, second = (torch.ones_like(power) for power in powers)
    else:
        first, second = (1 - power for power in powers)
    return first, second


def _adam(call: Call) -> None:
    """Epsilon is added after the second moment's correction."""
    parameter, gradient, rate = _operands(call)
    correction1, correction2 = _corrections(call)
    if call.type == "adamw":
        rate = rate * call.number("lr_ratio", 1.0)
        if call.flag("with_decay"):
            decay = call.number("coeff", 0.01)
            if call.flag("decays_gradient"):
                gradient = gradient + decay * parameter
            else:
                parameter = parameter * (1 - rate * decay)
    first, second = _moments(call, gradient)
    root = torch.sqrt(second) / torch.sqrt(correction2) + call.number("epsilon", 1e-8)
    _put_parameter(call, parameter - rate / correction1 * (first / root))


def _lamb(call: Call) -> None:
    parameter, gradient, rate = _operands(call)
    decay, epsilon = call.number("weight_decay", 0.0), call.number("epsilon", 1e-6)
    correction1, correction2 = _corrections(call)
    if call.flag("decays_gradient"):
        gradient = gradient + decay * parameter
    first, second = _moments(call, gradient)
    step = (first / correction1) / (torch.sqrt(second / correction2) + epsilon)
    if not call.flag("decays_gradient"):
        step = step + decay * parameter
    if decay > 0 or call.flag("always_adapt"):
        size, length = parameter.square().sum().sqrt(), step.square().sum().sqrt()
        if "largest_norm" in call.operator.attributes:
            size = size.clamp(max=call.number("largest_norm"))
        both = (size > 0) & (length > 0)
        trust = torch.where(both, size / torch.where(both, length, 1.0), 1.0)
        rate = rate * trust.to(rate.dtype)
    _put_parameter(call, parameter - rate * step)


def _adamax(call: Call) -> None:
    """The power of beta1 is advanced by a scale operator of its own."""
    parameter, gradient, rate = _operands(call)
    beta1, beta2 = call.number("beta1", 0.9), call.number("beta2", 0.999)
    moment = beta1 * call.tensor("Moment") + (1 - beta1) * gradient
    norm = torch.maximum(
        gradient.abs(), beta2 * call.tensor("InfNorm") + call.number("epsilon", 1e-8)
    )
    power = call.tensor("Beta1Pow").reshape(())
    _put_parameter(call, parameter - rate / (1 - power) * (moment / norm))
    call.put(moment, "MomentOut")
    call.put(norm, "InfNormOut")


def _adagrad(call: Call) -> None:
    parameter, gradient, rate = _operands(call)
    moment = call.tensor("Moment") + gradient * gradient
    root = moment.sqrt() + call.number("epsilon", 1e-6)
    _put_parameter(call, parameter - rate * gradient / root)
    call.put(moment, "MomentOut")


def _adadelta(call: Call) -> None:
    parameter, gradient, rate = _operands(call)
    keep, epsilon = call.number("rho", 0.95), call.number("epsilon", 1e-6)
    squares, updates = call.tensor("AvgSquaredGrad"), call.tensor("AvgSquaredUpdate")
    squares = keep * squares + (1 - keep) * gradient * gradient
    step = -torch.sqrt((updates + epsilon) / (squares + epsilon)) * gradient
    _put_parameter(call, parameter + rate * step)
    call.put(squares, "AvgSquaredGradOut")
    call.put(keep * updates + (1 - keep) * step * step, "AvgSquaredUpdateOut")


def _rmsprop(call: Call) -> None:
    parameter, gradient, rate = _operands(call)
    keep, epsilon = call.number("decay", 0.9), call.number("epsilon", 1e-10)
    square = keep * call.tensor("MeanSquare") + (1 - keep) * gradient * gradient
    spread = square + epsilon
    if call.flag("centered"):
        mean = keep * call.tensor("MeanGrad") + (1 - keep) * gradient
        spread = square - mean * mean + epsilon
        call.put(mean, "MeanGradOut")
    step = call.number("momentum", 0.0) * call.tensor("Moment") + rate * gradient / spread.sqrt()
    _put_parameter(call, parameter - step)
    call.put(step, "MomentOut")
    call.put(square, "MeanSquareOut")


def _clip_by_norm(call: Call) -> None:
    x, most = call.tensor(), call.number("max_norm")
    norm = x.square().sum().sqrt()
    call.put(torch.where(norm > most, x * (most / norm), x))


TABLE: Table = {
    "adadelta": _adadelta,
    "adagrad": _adagrad,
    "adam": _adam,
    "adamax": _adamax,
    "adamw": _adam,
    "clip_by_norm": _clip_by_norm,
    "lamb": _lamb,
    "momentum": _momentum,
    "rmsprop": _rmsprop,
    "sgd": _sgd,
}
