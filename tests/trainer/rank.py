"""What `corl_trainer.accelerated` starts in its tests, in place of a trainer.

`end CODE` ends with that code. `wait FOLDER CODE` makes FOLDER/RANK and ends with the code after a SIGTERM.
"""

import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != "--"]
    if arguments[0] == "end":
        return int(arguments[1])
    folder, code = Path(arguments[1]), int(arguments[2])
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    (folder / os.environ.get("RANK", "0")).touch()
    while not asked:
        time.sleep(0.02)
    (folder / f"{os.environ.get('RANK', '0')}.asked").touch()
    return code


if __name__ == "__main__":
    sys.exit(main())
