"""Reading saved models without Paddle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.paddle.program_bytes import (
    FLOAT32,
    INT64,
    number,
    operator,
    parameter,
    program,
    raw,
    variable,
)

from pantile.errors import CaptureError, DamagedFile, InputMismatch, StoreError, UnknownFormat
from pantile.paddle import Config, create_predictor, load_inference_model
from pantile.paddle.description import read_program
from pantile.paddle.parameters import read_parameters
from pantile.paddle.saved_model import read_saved_model

DATA = Path(__file__).parent / "data"


def _write(folder: Path, operators: list[bytes], *, fetched: str = "out") -> Path:
    variables = [variable("x", [-1, 2]), variable("w", [2], persistable=True)]
    feed = operator("feed", {"X": ["feed"]}, {"Out": ["x"]}, col=0)
    fetch = operator("fetch", {"X": [fetched]}, {"Out": ["fetch"]}, col=0)
    (folder / "m.pdmodel").write_bytes(program(variables, [feed, *operators, fetch]))
    weights = np.float32([10, 20]).tobytes()
    (folder / "m.pdiparams").write_bytes(parameter(FLOAT32, [2], weights))
    return folder / "m"


def _scale_and_add() -> list[bytes]:
    return [
        operator("scale", {"X": ["x"]}, {"Out": ["h"]}, scale=3.0, bias=1.0, bias_after_scale=True),
        operator("elementwise_add", {"X": ["h"], "Y": ["w"]}, {"Out": ["out"]}, axis=-1),
    ]


def test_a_model_that_paddle_saved_gives_what_paddle_computed() -> None:
    stored = np.load(DATA / "small_results.npz")

    predictor = load_inference_model(DATA / "small")
    (result,) = predictor(stored["image"])

    np.testing.assert_allclose(result, stored["result"], rtol=1e-5, atol=1e-6)
    assert predictor.get_input_names() == ["image"]


@pytest.mark.parametrize("name", ["small3", "bert3", "conv3", "lstm3"])
def test_a_model_that_paddle_3_saved_gives_what_paddle_3_computed(name: str) -> None:
    fed, *expected = np.load(DATA / f"{name}_results.npz").values()

    results = load_inference_model(DATA / name)(fed)

    for result, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(
            result, want.reshape(result.shape), rtol=2e-5, atol=2e-6, err_msg=name
        )
        assert result.dtype == want.dtype


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"base_code": {"magic": "other"}}', "no Paddle program"),
        ('{"base_code": {"magic": "pir", "version": 99}}', "version 99"),
        ('{"base_code": {"magic": "pir", "version": 1}, "program": {}}', "KeyError"),
        ("[" * 100000, "RecursionError"),
    ],
)
def test_a_damaged_program_of_paddle_3_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "m.json").write_text(text)

    with pytest.raises(StoreError, match=why):
        load_inference_model(tmp_path / "m")


def test_handles_carry_values_in_and_out() -> None:
    stored = np.load(DATA / "small_results.npz")
    config = Config(DATA / "small.pdmodel", DATA / "small.pdiparams")
    config.enable_ipu(ipu_micro_batch_size=3)
    predictor = create_predictor(config)
    (name,) = predictor.get_output_names()

    with pytest.raises(InputMismatch, match="has no value yet"):
        predictor.run()
    predictor.get_input_handle("image").copy_from_cpu(stored["image"])
    assert predictor.run() is True
    result = predictor.get_output_handle(name)

    assert result.shape() == [3, 4]
    np.testing.assert_allclose(result.copy_to_cpu(), stored["result"], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputMismatch, match="no input 'no_such'"):
        predictor.get_input_handle("no_such")


def test_half_precision_and_replicas_come_from_the_config() -> None:
    stored = np.load(DATA / "small_results.npz")
    config = Config(DATA / "small")
    config.enable_ipu(ipu_device_num=2, ipu_enable_pipelining=True, ipu_batches_per_step=3)
    config.set_ipu_config(ipu_enable_fp16=True)

    (result,) = create_predictor(config)(stored["image"])

    assert result.shape == (3, 1, 4) and result.dtype == np.float32
    error = np.abs(result.reshape(3, 4) - stored["result"]).max()
    assert 0 < error < 4e-3  # half has 11 bits


def test_a_program_is_computed_as_it_is_written(tmp_path: Path) -> None:
    predictor = load_inference_model(_write(tmp_path, _scale_and_add()))

    (result,) = predictor(np.float32([[1, 2], [3, 4], [5, 6]]))

    np.testing.assert_array_equal(result, [[14, 27], [20, 33], [26, 39]])


def test_attributes_of_every_type_are_read() -> None:
    scalar = raw(1, "s") + number(2, 16) + raw(20, number(1, 2) + number(3, 7))
    longs = raw(1, "longs") + number(2, 11) + number(15, -5) + number(15, 1 << 40)
    packed = raw(1, "packed") + number(2, 3) + raw(6, b"\x01\x02\xff\x01")
    data = operator("op", {}, {}, i=-3, f=0.5, t="text", b=True, many=[1, 2], floats=[0.5, 1.5])
    data += raw(4, scalar) + raw(4, longs) + raw(4, packed)

    (read,) = read_program(program([], [data])).main.operators

    assert read.attributes == {
        "i": -3,
        "f": 0.5,
        "t": "text",
        "b": True,
        "many": [1, 2],
        "floats": [0.5, 1.5],
        "s": 7,
        "longs": [-5, 1 << 40],
        "packed": [1, 2, 255],
    }


def test_parameters_are_read_in_the_order_of_their_names() -> None:
    data = parameter(FLOAT32, [2, 1], np.float32([1, 2]).tobytes())
    data += parameter(INT64, [], np.int64([7]).tobytes())

    found = read_parameters(data, ["a", "b"])

    assert torch.equal(found["a"], torch.tensor([[1.0], [2.0]]))
    assert torch.equal(found["b"], torch.tensor(7))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a\xff\xff\xff\xff\x0f", "bytes are announced"),
        (b"\xff" * 11, "a number does not end"),
        (b"\x0b", "wire type 3"),
        (raw(2, b""), "holds no block"),
        (raw(1, raw(4, raw(1, b""))), "has no type"),
        (raw(1, raw(4, raw(3, b"\xff\xfe"))), "not UTF-8"),
        (raw(1, raw(4, raw(4, number(2, 99)) + raw(3, "x"))), "type 99"),
        (raw(1, raw(4, number(3, 5))), "a number stands where bytes"),
    ],
)
def test_a_damaged_program_says_what_is_wrong_and_where(data: bytes, why: str) -> None:
    with pytest.raises(DamagedFile, match=rf"program, byte \d+: .*{why}"):
        read_program(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (parameter(FLOAT32, [2], b"1234"), "8 bytes are needed and 4 are left"),
        (parameter(FLOAT32, [1], b"1234") + b"more", "4 bytes follow"),
        (parameter(FLOAT32, [-1], b""), r"shape \[-1\]"),
        (parameter(FLOAT32, [1 << 40, 1 << 40], b""), "bytes are needed"),
        (parameter(99, [1], b"1234"), "none that torch has"),
        (b"\x01" + parameter(FLOAT32, [1], b"1234")[1:], "version 1"),
        (b"\0\0\0\0" + b"\xff" * 8, "levels of detail"),
        (b"", "4 bytes are needed and 0 are left"),
    ],
)
def test_damaged_parameters_say_what_is_wrong_and_where(data: bytes, why: str) -> None:
    with pytest.raises(DamagedFile, match=rf"parameters.*{why}"):
        read_parameters(data, ["w"])


def test_what_cannot_be_run_is_refused_with_all_its_operators(tmp_path: Path) -> None:
    operators = [
        operator("mystery", {"X": ["x"]}, {"Out": ["h"]}),
        operator("enigma", {"X": ["h"]}, {"Out": ["out"]}),
    ]

    with pytest.raises(CaptureError, match="enigma, mystery"):
        load_inference_model(_write(tmp_path, operators))


def test_files_that_are_missing_or_not_for_inference_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        load_inference_model(tmp_path / "nowhere")
    (tmp_path / "m.pdmodel").write_bytes(program([], _scale_and_add()))
    with pytest.raises(UnknownFormat, match="fetches nothing"):
        read_saved_model(tmp_path / "m")
