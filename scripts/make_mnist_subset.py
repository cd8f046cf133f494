"""Cut the small MNIST that ships with the examples out of the full one.

    scripts/make_mnist_subset.py FULL_DIR examples/mnist/data

Every fourth image of each file is kept: 15 000 to train on, 2 500 to test on, spread over the whole
set (the first half of the MNIST test set is known to be easier than the second). The result has the
same four file names and the same IDX format, so a program cannot tell it from the full set.
"""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

EVERY = 4
NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def every_nth(idx: bytes, step: int) -> bytes:
    """Keep items 0, step, 2·step … of an IDX file of bytes."""
    rank = idx[3]
    sizes = struct.unpack(f">{rank}I", idx[4 : 4 + 4 * rank])
    start = 4 + 4 * rank
    item = (len(idx) - start) // sizes[0]
    kept = [idx[start + i * item : start + (i + 1) * item] for i in range(0, sizes[0], step)]
    return idx[:4] + struct.pack(f">{rank}I", len(kept), *sizes[1:]) + b"".join(kept)


def main(source: Path, target: Path) -> None:
    """Write the four subset files and print their sizes."""
    target.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        subset = every_nth(gzip.decompress((source / name).read_bytes()), EVERY)
        # mtime=0: the same input always gives the same bytes, so the files can be checked.
        (target / name).write_bytes(gzip.compress(subset, compresslevel=9, mtime=0))
        print(f"{target / name}: {(target / name).stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
