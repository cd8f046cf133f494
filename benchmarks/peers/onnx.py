"""ONNX Runtime: inference of the model exported by torch, with inputs and outputs bound once."""

from __future__ import annotations

import contextlib
import io
import logging
from typing import Any

import numpy as np
import torch

from benchmarks.peers.peer import Engine, Peer, Purpose, Settings, repeated
from benchmarks.workloads import Workload


def _exported(workload: Workload) -> bytes:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    model, x = workload.model().eval(), workload.batch()[0]
    with contextlib.redirect_stdout(io.StringIO()):  # the exporter reports its stages there
        program = torch.onnx.export(model, (x,), dynamo=True, optimize=True, verbose=False)
    file = io.BytesIO()
    assert program is not None
    program.save(file)
    return file.getvalue()


class OnnxRuntime(Peer):
    """`InferenceSession` on the CPU provider."""

    name, family = "onnxruntime", "onnx"
    needs = ("onnx", "onnxruntime", "onnxscript")

    def takes(self, workload: Workload, purpose: Purpose) -> bool:
        """Inference only."""
        return purpose == "inference"

    def training(self, workload: Workload) -> Engine:
        """ONNX Runtime's training build is not on the package index."""
        raise NotImplementedError("onnxruntime trains nothing here")

    def inference(self, workload: Workload) -> Engine:
        """Export, load, bind."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            _exported(workload), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()
        given = onnxruntime.OrtValue.ortvalue_from_numpy(workload.batch()[0].numpy())
        binding.bind_ortvalue_input(session.get_inputs()[0].name, given)
        binding.bind_output(session.get_outputs()[0].name)

        def step() -> Any:
            session.run_with_iobinding(binding)
            return binding

        return Engine(repeated(step), _numbers)


def _numbers(binding: Any) -> np.ndarray:
    return binding.copy_outputs_to_cpu()[0].astype(np.float64).ravel()


def peers(settings: Settings) -> list[Peer]:
    """The CPU provider."""
    return [OnnxRuntime()]
