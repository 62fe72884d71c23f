"""`python -m corl_trainer`, also under torchrun: `torchrun ... -m corl_trainer -- ...` (`accelerate launch` alike).

torchrun takes `--run` for an abbreviation of its own `--run-path` unless a `--` stands before our arguments, and then
hands the `--` on.
"""

import sys
from importlib.metadata import EntryPoint

from corl.cli import run

arguments = sys.argv[1:]
if arguments[:1] == ["--"]:
    del arguments[0]
sys.exit(run(["train", *arguments], {"train": EntryPoint("train", "corl_trainer.main:train", "corl.commands")}))
