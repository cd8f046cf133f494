"""The recorder of a capture: per thread, nestable."""

import threading

import pytest

from pantile.ops.context import current, isRunningOnIpu


def test_nobody_listens_outside_a_capture():
    assert current() is None
    assert not isRunningOnIpu()


def test_captures_can_be_nested(device):
    outer, inner = device.Notebook(), device.Notebook()

    with device.recording(outer):
        with device.recording(inner):
            assert current() is inner
        assert current() is outer
        assert isRunningOnIpu()

    assert current() is None


def test_an_error_ends_the_capture(device):
    with pytest.raises(ZeroDivisionError), device.recording(device.Notebook()):
        raise ZeroDivisionError

    assert current() is None


def test_another_thread_does_not_see_the_capture(device):
    seen = []

    with device.recording(device.Notebook()):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()

    assert seen == [None]
