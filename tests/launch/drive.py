"""`corl run` over the fakes, in a process of its own: `python -m tests.launch.drive JSON`, the fields of `Asked`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from corl_trainer.launch.plan import Programs
from corl_trainer.launch.run import Asked, launch
from corl_trainer.launch.supervisor import Limits

from corl.errors import CorlError

FAKE = (sys.executable, "-m", "tests.launch.fakes")
LIMITS = Limits(turn_s=0.02, probe_s=0.05, first_pause_s=0.05, ready_s=30, drain_s=5, step_s=2, now_s=1, guard_s=2)


def main() -> int:
    fields = json.loads(sys.argv[1])
    paths = {name: Path(fields[name]) for name in ("cohort_file", "out") if fields.get(name)}
    try:
        return launch(
            Asked(**{**fields, **paths}),
            root=Path("runs"),
            programs=Programs(judge=(*FAKE, "judge"), trainer=(*FAKE, "trainer")),
            limits=LIMITS,
        )
    except CorlError as error:
        print(f"corl: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
