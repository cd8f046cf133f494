"""The constants that scripts take from popart, and how it makes way for a real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import popart
import poptorch


def test_the_constants_have_the_numbers_of_the_old_backend():
    assert int(popart.RecomputationType.Standard) == 1
    assert int(popart.RecomputationType.Pipeline) == 3
    assert int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized) == 3
    assert int(popart.SubgraphCopyingStrategy.JustInTime) == 1
    assert int(popart.SyntheticDataMode.RandomNormal) == 2


def test_they_are_accepted_as_raw_settings():
    options = poptorch.Options()

    options._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    options.enableSyntheticData(popart.SyntheticDataMode.RandomNormal)

    assert options._Popart.options["subgraphCopyingStrategy"] == 1
    assert options.synthetic_data


def test_a_hint_about_data_flow_is_kept_as_it_was_given():
    flow = popart.DataFlow(3, {"loss": popart.AnchorReturnType("Final")})

    assert flow.batchesPerStep == 3
    assert flow.anchorTensors["loss"].id() is popart.AnchorReturnTypeId.Final


def test_another_copy_of_the_constants_on_the_path_is_passed_over(tmp_path):
    shutil.copytree(Path(popart.__file__).parent, tmp_path / "popart")
    paths = f"{tmp_path}{os.pathsep}{Path(popart.__file__).parent.parent}"

    told = subprocess.run(
        [sys.executable, "-c", "import popart; print(popart.__file__)"],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )

    assert told.stdout.startswith(str(tmp_path))


def test_a_real_one_elsewhere_on_the_path_is_found_instead(tmp_path):
    real = tmp_path / "popart"
    real.mkdir()
    (real / "__init__.py").write_text("from popart.inner import KIND\n")
    (real / "inner.py").write_text("KIND = 'real'\n")
    ours = str(Path(popart.__file__).parent.parent)
    script = "import popart; import popart.inner; print(popart.KIND, popart.inner.KIND)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([ours, str(tmp_path)])}

    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["real", "real"]
