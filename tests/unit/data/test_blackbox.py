"""Reading what a worker left."""

from __future__ import annotations

import os

from pantile.data.blackbox import BlackBox, user_frames

DUMP = """Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "/site/pantile/data/worker.py", line 126 in _keep_watch
  File "/python/threading.py", line 982 in run

Current thread 0x2 (most recent call first):
  File "/home/user/dataset.py", line 9 in decode
  File "/home/user/dataset.py", line 5 in __iter__
  File "/site/pantile/data/worker.py", line 185 in _load_epoch
  File "/python/multiprocessing/process.py", line 108 in run
"""


def test_a_stack_is_shown_down_to_our_own_frames():
    assert user_frames(DUMP).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "/home/user/dataset.py", line 9 in decode',
        '  File "/home/user/dataset.py", line 5 in __iter__',
    ]


def test_text_that_is_no_stack_is_left_as_it_is():
    assert user_frames("out of paper\n") == "out of paper"


def test_the_end_of_a_long_text_is_what_is_read():
    box = BlackBox()
    os.write(box.file.fd, b"x" * 100_000 + b"the end")

    text = box.read()
    box.close()

    assert text.endswith("xthe end")
    assert len(text) < 10_000


def test_the_users_frame_is_found_before_a_long_list_of_extension_modules():
    box = BlackBox()
    stack = 'Current thread 0x1 (most recent call first):\n  File "model.py", line 3 in load\n'
    os.write(box.file.fd, f"{stack}\nExtension modules: {'torch._C, ' * 2000}".encode())

    frames = box.frames()
    box.close()

    assert "model.py" in frames
    assert "torch._C" not in frames
