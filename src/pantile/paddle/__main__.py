"""`python -m pantile.paddle script.py …`: run a Paddle-IPU script."""

from __future__ import annotations

import sys

from pantile.errors import Error
from pantile.paddle.launcher import MODULE, launch
from pantile.paddle.script import run_module, run_script


def main(arguments: list[str]) -> int:
    """Run the script that is named first; the rest are its arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m pantile.paddle script.py [argument ...]")
        print("       python -m pantile.paddle -m module [argument ...]")
        print(f"       python -m pantile.paddle -m {MODULE} --devices N ipu ... script.py")
        return 0 if arguments else 2
    try:
        if arguments[:2] == ["-m", MODULE]:
            launch(arguments[2:])
        elif arguments[0] == "-m" and len(arguments) > 1:
            run_module(arguments[1], arguments[2:])
        else:
            run_script(arguments[0], arguments[1:])
    except Error as error:
        print(f"pantile: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
