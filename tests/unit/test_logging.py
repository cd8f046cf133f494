"""The log: levels, format, environment."""

import logging
import re
import subprocess
import sys

import pytest

from pantile.logging import RepeatLimit, configure, logger, setLogLevel


@pytest.fixture(autouse=True)
def _restore():
    yield
    configure()


def run(code, **environment):
    """stderr of a fresh interpreter."""
    import os

    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return result.stderr


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("DEBUG", logging.DEBUG),
        ("INFO", logging.INFO),
        ("WARN", logging.WARNING),
        ("ERR", logging.ERROR),
        (1, logging.DEBUG),
        (2, logging.INFO),
        (3, logging.WARNING),
        (4, logging.ERROR),
    ],
)
def test_levels_by_name_and_number(level, expected):
    setLogLevel(level)

    assert logger.getEffectiveLevel() == expected


@pytest.mark.parametrize("level", ["TRACE", 0])
def test_trace_is_below_debug(level):
    setLogLevel(level)

    assert logger.getEffectiveLevel() < logging.DEBUG


@pytest.mark.parametrize("level", ["OFF", 6])
def test_off_silences_even_critical_messages(level):
    setLogLevel(level)

    assert not logger.isEnabledFor(logging.CRITICAL)


@pytest.mark.parametrize("level", [5, 7, -1, True])
def test_a_number_that_is_no_level_is_refused(level):
    with pytest.raises(ValueError, match="Invalid log level integer"):
        setLogLevel(level)


def test_a_name_that_is_no_level_is_answered_with_the_names():
    with pytest.raises(ValueError, match="Unknown log level") as caught:
        setLogLevel("LOUD")

    assert "Valid values are DEBUG, ERR, INFO, OFF, TRACE and WARN" in str(caught.value)


def test_a_line_has_the_documented_format(capsys):
    logger.warning("something %s", "odd")

    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\[\d\d:\d\d:\d\d\.\d{3}\] \[poptorch::python\] \[warning\] something odd\n", line
    )


def test_messages_below_the_default_level_are_not_shown(capsys):
    logger.info("detail")

    assert capsys.readouterr().err == ""


def test_messages_propagate(caplog):
    logger.warning("seen")

    assert logger.name == "poptorch::python"
    assert "seen" in caplog.text


def test_the_environment_sets_level_and_destination(monkeypatch, tmp_path):
    file = tmp_path / "log.txt"
    monkeypatch.setenv("POPTORCH_LOG_LEVEL", "INFO")
    monkeypatch.setenv("POPTORCH_LOG_DEST", str(file))

    configure()
    logger.info("to a file")

    assert file.read_text().endswith("[info] to a file\n")


def test_configuring_twice_does_not_double_the_lines(capsys):
    configure()
    configure()

    logger.warning("once")

    assert capsys.readouterr().err.count("once") == 1


def test_an_uncaught_exception_is_left_to_python_by_default():
    error = run("import pantile.logging; raise ValueError('boom')", POPTORCH_STRICT="0")

    assert error.startswith("Traceback")
    assert "[critical]" not in error


def test_strict_mode_logs_an_uncaught_exception_as_critical():
    error = run("import pantile.logging; raise ValueError('boom')", POPTORCH_STRICT="1")

    assert "[poptorch::python] [critical]" in error
    assert "ValueError: boom" in error


def test_a_line_follows_itself_no_more_often_than_the_limit() -> None:
    limit = RepeatLimit()
    limit.limit = 2

    shown = [limit.filter(_record(text)) for text in ("a", "a", "a", "b", "a")]

    assert shown == [True, True, False, True, True]


def test_without_a_limit_every_line_is_shown() -> None:
    assert all(RepeatLimit().filter(_record("a")) for _ in range(9))


def _record(text: str) -> logging.LogRecord:
    return logging.LogRecord("poptorch::python", logging.WARNING, "file", 1, text, None, None)
