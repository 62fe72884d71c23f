"""`python -m corl_trainer`, and so `torchrun ... -m corl_trainer` and `accelerate launch -m corl_trainer`."""

from corl_trainer.main import app

app()
