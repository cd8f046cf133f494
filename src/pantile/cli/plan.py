"""`pantile plan`: where to cut a model, and how fast it would be on a pod.

pantile plan train.py --ipus 16            runs the script until it compiles its first model
pantile plan models.py:make --ipus 16      calls make(), which returns a model and its inputs
"""

from __future__ import annotations

import argparse
import json
import runpy
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pantile.errors import Error
from pantile.machine.targets import chip_named, constants_from, pod, with_constants
from pantile.planning import Plan, annotations_of, as_data, plans, plans_of, table


class _Compiled(BaseException):
    """Ends a script once its model is known; no `except Exception` of the script holds it up."""

    def __init__(self, found: list[Plan]) -> None:
        super().__init__()
        self.found = found


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pantile plan`."""
    parser = commands.add_parser("plan", help="split a model over the IPUs of a pod")
    parser.add_argument("what", help="a script, or file.py:function")
    parser.add_argument("--args", default="", metavar="TEXT", help="arguments of the script")
    parser.add_argument("--ipus", type=int, default=16, help="IPUs of the pod (16)")
    parser.add_argument("--chip", default="Bow", help="GC2, GC200, Bow or C600")
    parser.add_argument("--batch", type=int, help="samples of one weight update")
    parser.add_argument("--optimizer", default="adamw", help="for file.py:function (adamw)")
    parser.add_argument("--inference", action="store_true", help="for file.py:function")
    parser.add_argument(
        "--micro-batches", default="", metavar="N,N", help="other sizes, for file.py:function"
    )
    parser.add_argument(
        "--constant",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value for a constant of `pantile info --constants`",
    )
    parser.add_argument("--others", type=int, default=0, metavar="N", help="show the next best")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Print the best plan; the status is 1 if nothing fits."""
    path, _, name = parsed.what.rpartition(":")
    found = _of_function(path, name, parsed) if path.endswith(".py") else _of_script(parsed)
    best = found[0]
    if parsed.json:
        shown = [as_data(plan) for plan in found[: 1 + parsed.others]]
        print(json.dumps(shown[0] if len(shown) == 1 else shown, indent=2))
    else:
        print(table(best))
        print(f"\n# paste after the model is made\n{annotations_of(best)}")
        for plan in found[1 : 1 + parsed.others]:
            print(f"\n{table(plan)}")
    return int(not best.fits)


def _of_function(path: str, name: str, parsed: argparse.Namespace) -> list[Plan]:
    namespace = runpy.run_path(_existing(path), run_name="pantile_plan")
    if name not in namespace:
        raise Error(f"{path} has no function {name!r}", fix="name one that returns model, inputs")
    made = namespace[name]()
    if not isinstance(made, tuple) or len(made) != 2:
        raise Error(
            f"{name}() returns a {type(made).__name__}, not a model and its inputs",
            fix="return model, (input, …): the tensors of one micro-batch",
        )
    model, inputs = made
    sizes = [int(size) for size in parsed.micro_batches.split(",") if size]
    return plans(
        model,
        inputs if isinstance(inputs, Sequence) else (inputs,),
        ipus=parsed.ipus,
        chip=parsed.chip,
        batch=parsed.batch,
        training=not parsed.inference,
        optimizer=parsed.optimizer,
        micro_batches=sizes,
        constants=constants_from(",".join(parsed.constant)),
        progress=sys.stderr.isatty(),
    )


def _of_script(parsed: argparse.Namespace) -> list[Plan]:
    from pantile.runtime.estimate import estimate_of
    from pantile.runtime.observe import listening

    changes = constants_from(",".join(parsed.constant))
    system = with_constants(pod(chip_named(parsed.chip), parsed.ipus), changes)

    def listen(executor: Any, program: Any) -> None:
        known = estimate_of(executor, program, system=system)
        samples = parsed.batch or known.configuration.samples
        trials = [replace(known.settings, proportions=(p,)) for p in (0.6, 0.3, 0.15)]
        raise _Compiled(plans_of(known.record, known.configuration, trials, batch=samples))

    script, before = _existing(parsed.what), sys.argv
    sys.argv = [script, *shlex.split(parsed.args)]
    try:
        with listening(listen):
            runpy.run_path(script, run_name="__main__")
    except _Compiled as done:
        return done.found
    finally:
        sys.argv = before
    raise Error(
        f"{script} ended without compiling a model",
        fix="let it call a poptorch.trainingModel, or pass file.py:function",
    )


def _existing(path: str) -> str:
    if not Path(path).is_file():
        raise Error(f"there is no file {path}", fix="pass a script, or file.py:function")
    return path
