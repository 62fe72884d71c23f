"""`python -m corl_trainer`, also under torchrun: `torchrun ... -m corl_trainer -- ...` (`accelerate launch` alike).

torchrun takes `--run` for an abbreviation of its own `--run-path` unless a `--` stands before our arguments, and then
hands the `--` on.
"""

import sys

from corl_trainer.main import app

arguments = sys.argv[1:]
app(arguments[1:] if arguments[:1] == ["--"] else arguments)
