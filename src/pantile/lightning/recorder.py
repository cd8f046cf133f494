"""Record one step of a LightningModule: what is exchanged while it runs on fake tensors.

    self.log                 → an event of the tape
    metrics                  → events; their results are Deferred
    batch_idx, current_epoch, global_step, learning rates
                             → numbers that note what was concluded from them
    attributes               → see attributes.py
    .item(), loggers         → see host_values.py

Everything is put back when the recording ends, also by an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from pantile.capture.tracked import Facts, TrackedFactories
from pantile.errors import CaptureError
from pantile.lightning.attributes import Attributes, Exchange, Fed
from pantile.lightning.host_values import METRICS, HostValues, host_object, watched_metrics
from pantile.lightning.tape import Deferred, Tape

_MISSING = object()
_METHODS = ("forward", "update", "compute", "reset")
_REDUCTIONS = ("mean", "sum", "min", "max")
COUNTERS = ("current_epoch", "global_step")
_LOOP_NUMBERS = ("batch_idx", "total_batch_idx")
_LOGGERS = ("logger", "loggers")


class Recorder:
    """The exchanges for one recording of a LightningModule's step."""

    def __init__(self, module: Any, attributes: Attributes, facts: Facts, fed: Fed) -> None:
        self._module, self._facts, self._fed = module, facts, fed
        self._attributes, self._observers = attributes, attributes.observers
        self._undo = ExitStack()
        self._rates: list[tuple[dict[str, Any], str, Any]] = []
        self.tape = Tape()
        self._values = HostValues(self.tape)
        #: The names that the step made: path of the table, name.
        self.made: list[tuple[str, Any]] = []

    @property
    def used(self) -> Mapping[int, torch.Tensor]:
        """Tensors that are no inputs, and that the step used."""
        return {**self._values.used, **self.tape.real}

    @contextmanager
    def recording(self, tensors: Sequence[torch.Tensor]) -> Iterator[Tape]:
        """Everything is exchanged inside. `tensors` are the attributes that are inputs."""
        with self._undo:
            exchange = Exchange(self._attributes, self._fed, self._facts, tensors)
            self._undo.callback(exchange.put_back)
            self._exchange_log()
            self._put(self._module, "print", partial(self.tape.add_call, self._module.print))
            self._exchange_metrics()
            self._exchange_counters()
            self._exchange_rates()
            self._undo.enter_context(TrackedFactories())
            self._undo.enter_context(self._values)
            # Anomaly detection would ask fake tensors whether they are finite.
            self._undo.enter_context(torch.autograd.set_detect_anomaly(False))
            yield self.tape
            self._check_rates()
            exchange.record(self.tape)
            self.made = exchange.made

    def _put(self, owner: Any, name: str, value: Any) -> None:
        table = vars(owner)
        before = table.get(name, _MISSING)
        table[name] = value
        self._undo.callback(_restore, table, name, before)

    def _exchange_log(self) -> None:
        module, tape = self._module, self.tape
        real = partial(_log_as, module, module.log)

        def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            reduce = kwargs.get("reduce_fx", "mean")
            name_of = reduce if isinstance(reduce, str) else getattr(reduce, "__name__", "")
            chosen = name_of.lower() if name_of.lower() in _REDUCTIONS else "mean"
            tape.add(real, (module._current_fx_name, name, value, *args), kwargs, chosen)

        self._put(module, "log", log)
        for observer in self._observers:
            if "log" in vars(observer):  # the Trainer gave it the module's
                self._put(observer, "log", log)

    def _exchange_metrics(self) -> None:
        for metric in _metrics(self._module):
            for method in _METHODS:
                real = getattr(metric, method, None)
                if callable(real):
                    call = partial(self._metric, metric, method)
                    self._put(metric, method, _Method(call, host_object(self.tape, real)))

    def _metric(self, metric: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        call = partial(_call_metric, metric, method)
        if method in ("update", "reset"):
            self.tape.add(call, args, kwargs)
            return None
        result = Deferred(self.tape, call, args, kwargs)
        if isinstance(metric, nn.ModuleDict):  # a MetricCollection returns a dict
            return {name: result[name] for name in metric.keys(keep_base=False)}  # type: ignore[call-arg]
        return result

    def _exchange_counters(self) -> None:
        facts, trainer, tape = self._facts, self._module._trainer, self.tape
        # Made before the classes change: a number is looked up where the user would.
        epoch, step = (facts.number(name) for name in COUNTERS)
        counted = property(lambda _: step + tape.steps if tape.steps else step)
        shown: dict[str, Any] = {"current_epoch": _shown(epoch), "global_step": counted}
        if trainer is not None:
            loggers = {n: _shown(host_object(tape, getattr(trainer, n))) for n in _LOGGERS}
            numbers = {name: _shown(facts.number(name)) for name in _LOOP_NUMBERS}
            self._change_class(trainer.fit_loop.epoch_loop, numbers)
            last = _shown(facts.number("is_last_batch"))
            metrics = {name: self._metrics_property(trainer, name) for name in METRICS}
            self._change_class(trainer, {**shown, **metrics, **loggers, "is_last_batch": last})
            shown |= loggers
        self._change_class(self._module, shown)

    def _metrics_property(self, trainer: Any, name: str) -> property:
        real = getattr(type(trainer), name).fget
        return property(lambda _: watched_metrics(self._facts, partial(real, trainer)))

    def _change_class(self, owner: Any, members: dict[str, Any]) -> None:
        kind = type(owner)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        owner.__class__ = type(kind.__name__, (kind,), {**names, **members})
        self._undo.callback(setattr, owner, "__class__", kind)

    def _exchange_rates(self) -> None:
        trainer = self._module._trainer
        if trainer is None:
            return
        for i, optimizer in enumerate(trainer.strategy.optimizers):
            for j, group in enumerate(optimizer.param_groups):
                for key, value in list(group.items()):
                    if type(value) is float:
                        group[key] = number = self._facts.number(f"rate {i} {j} {key}")
                        self._rates.append((group, key, number))
                        self._undo.callback(group.__setitem__, key, value)
        for i, config in enumerate(trainer.strategy.lr_scheduler_configs):
            rates = getattr(config.scheduler, "_last_lr", None)
            if isinstance(rates, list) and all(type(rate) is float for rate in rates):
                new = [self._facts.number(f"last {i} {j}") for j in range(len(rates))]
                config.scheduler._last_lr = new
                self._undo.callback(setattr, config.scheduler, "_last_lr", rates)

    def _check_rates(self) -> None:
        for group, key, number in self._rates:
            if group[key] is not number:
                raise CaptureError(
                    f"the step sets {key!r} of an optimizer; a compiled step would do it once",
                    fix="use a scheduler, or set it in on_train_batch_start",
                )


class _Method:
    """Stands for a method of a metric; what it has besides being called, it has after each run."""

    def __init__(self, call: Callable[..., Any], real: Any) -> None:
        self._call, self._real = call, real

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # torch looks at a function's globals
            raise AttributeError(name)
        return getattr(self._real, name)


def _restore(table: dict[str, Any], name: str, before: Any) -> None:
    if before is _MISSING:
        table.pop(name, None)
    else:
        table[name] = before


def _log_as(module: Any, real: Any, function: str, *args: Any, **kwargs: Any) -> None:
    """Log as if from the hook that did when it was recorded."""
    now, module._current_fx_name = module._current_fx_name, function
    try:
        real(*args, **kwargs)
    finally:
        module._current_fx_name = now


def _shown(number: Any) -> property:
    return property(lambda _: number)


def _call_metric(metric: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(metric, method)(*args, **kwargs)


def _metrics(module: nn.Module) -> Iterator[Any]:
    """Every metric of a module, also those it keeps in plain lists and dicts."""
    from torchmetrics import Metric, MetricCollection

    seen: set[int] = set()
    for child in module.modules():
        for value in (child, *_contents(vars(child).values())):
            if isinstance(value, (Metric, MetricCollection)) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _contents(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
        elif not isinstance(value, torch.Tensor):
            yield value


class StepNumbers(dict[str, Any]):
    """The numbers a step may read: looked up when they are first asked for, then kept.

    Kept, because an event may change an attribute that a later one reads.
    """

    def __init__(
        self, module: Any, attributes: Callable[[], Attributes], given: dict[str, Any]
    ) -> None:
        super().__init__(given)
        self._module, self._attributes = module, attributes

    def __missing__(self, name: str) -> Any:
        self[name] = value = self._look_up(name)
        return value

    def _look_up(self, name: str) -> Any:
        if name in COUNTERS:
            return getattr(self._module, name)
        trainer = self._module._trainer
        if name == "is_last_batch":
            return trainer.is_last_batch
        if name in _LOOP_NUMBERS:
            return getattr(trainer.fit_loop.epoch_loop, name)
        kind, _, rest = name.partition(" ")
        if kind == "rate":
            i, j, key = rest.split(" ", 2)
            return trainer.strategy.optimizers[int(i)].param_groups[int(j)][key]
        if kind == "last":
            i, j = rest.split(" ")
            return trainer.strategy.lr_scheduler_configs[int(i)].scheduler._last_lr[int(j)]
        return self._attributes().value(name)
