"""Two cohorts through the real services on this machine's GPU, or on its CPU, and a table of what they cost.

    benchmarks/gpu_check.sh [--out DIR]

*nano*: the example cohort, all its steps: it must learn on this device as it does on a CPU. *random*: two random Llamas
of 151 million parameters (5 on a CPU) in bfloat16, 10 steps with real lengths. Everything is as `corl run` starts it: a
Redis, judges on the transformers engine, trainers, weights by way of a folder.

Ends with 0 if all worked, 1 if something did not (with the end of the log), 2 if something is missing here.

Left out on purpose: vLLM, several devices, anything that needs a network. What that leaves unproven: docs/gpu.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu.requirements import ROOT, missing, project_requirements

LIMIT_S = 460.0
PATIENCE_S = 20.0
TAIL = 40
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
GAUGES = ("corl_device_memory_peak_bytes", "corl_host_memory_peak_bytes")


class Failed(Exception):
    """The check cannot go on; the message is for the user."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu_check.sh", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="keep the runs in this folder (default: only if something failed)")
    args = parser.parse_args(arguments)
    if faults := unmet():
        print("\n".join(["this cannot be run here:", *(f"  {fault}" for fault in faults)]), file=sys.stderr)
        return 2
    begun = time.monotonic()
    folder = args.out or Path(tempfile.mkdtemp(prefix="corl-gpu-check-"))
    try:
        lines, wrong = check(folder, begun + LIMIT_S)
    except Failed as error:
        print(f"{error}\nthe runs are in {folder}", file=sys.stderr)
        return 1
    print("\n".join(["", *lines, "", f"all of it took {time.monotonic() - begun:.0f} s"]))
    if wrong:
        print("\n".join([*wrong, f"the runs are in {folder}"]), file=sys.stderr)
        return 1
    if args.out is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def unmet() -> list[str]:
    """What this machine lacks for the check, each with its remedy; [] if it can run."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            version(name)
            continue
        return [f"{name} is not installed for {sys.executable}: name another interpreter by PYTHON"]
    lacking = missing([*project_requirements(), "corl"])
    if lacking:
        remedy = f"benchmarks/gpu_check.sh --pack DIR --python {python}"
        return [
            *lacking,
            f"on a machine with an index: {remedy}; bring DIR here and start this with --wheels DIR",
        ]
    return device_faults()


def device_faults() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return []
    found = []
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        found.append(f"{torch.cuda.get_device_name()} has no bfloat16: the check needs compute capability 8.0 or newer")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        # TRL's log-probabilities are a Triton kernel there, and Triton compiles its launcher when it is first used.
        found.append("no C compiler, which Triton needs: install gcc, or name one by CC")
    return found


def check(folder: Path, deadline: float) -> tuple[list[str], list[str]]:
    """(lines of the table, what is wrong). Raises Failed where a run did not end well."""
    import torch

    from benchmarks.gpu.cohorts import FULL, SMALL, nano_cohort, random_cohort
    from benchmarks.gpu.results import faults, measure, table
    from corl.cohort import load_cohort

    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {os.cpu_count()} cores"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl"))
    header = f"{where}; {versions}; Python {sys.version.split()[0]}"
    print(header, flush=True)
    columns, wrong = [], []
    for name in ("nano", "random"):
        home = folder / name
        home.mkdir(parents=True)
        if name == "nano":
            file = nano_cohort(home, device)
        else:
            file = random_cohort(home, device, FULL if device == "cuda" else SMALL)
        steps = load_cohort(file).training.steps
        print(f"{name}: {steps} steps", flush=True)
        found = measure(home / "run", run(file, home / "run", deadline))
        wrong += [fault for one in found for fault in faults(one, steps=steps, device=device)]
        columns += found
    return [header, "", table(columns)], wrong


def run(file: Path, out: Path, deadline: float) -> dict[str, dict[tuple[str, str], float]]:
    """`corl run`; the judges' peak memory by member. Raises Failed with the end of its log."""
    log = file.with_name("corl-run.log")
    memory: dict[str, dict[tuple[str, str], float]] = {}
    command = [sys.executable, "-m", "corl", "run", str(file), "--out", str(out)]
    with log.open("wb") as written:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | ENVIRONMENT, stdout=written, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise Failed(f"not done within {LIMIT_S:.0f} s; the end of {log}:\n{tail(log)}")
                look(out, memory)
                time.sleep(0.5)
        finally:
            end(process)
    if process.returncode != 0:
        raise Failed(f"corl run ended with {process.returncode}; the end of {log}:\n{tail(log)}")
    return memory


def look(out: Path, memory: dict[str, dict[tuple[str, str], float]]) -> None:
    """Read the judges' memory gauges, where judges are up: they end with the run."""
    import httpx
    from corl_trainer.launch.folder import RunFolder, RunFolderError
    from prometheus_client.parser import text_string_to_metric_families

    with suppress(RunFolderError, OSError, httpx.HTTPError, ValueError):
        key = (out / "api-key").read_text()
        for process in RunFolder(out).read().processes:
            if process.kind != "judge" or process.state != "ready":
                continue
            headers = {"authorization": f"Bearer {key}"}
            answer = httpx.get(f"{process.url}/metrics", headers=headers, timeout=2.0, trust_env=False)
            for family in text_string_to_metric_families(answer.raise_for_status().text):
                for sample in family.samples:
                    if sample.name in GAUGES and process.member is not None:
                        peaks = memory.setdefault(process.member, {})
                        peaks[sample.name, sample.labels.get("kind", "")] = sample.value


def tail(log: Path) -> str:
    return "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-TAIL:])


def end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C twice, which ends everything that it started; then without asking."""
    for ask in (process.terminate, process.terminate, process.kill):
        if process.poll() is not None:
            return
        ask()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)


if __name__ == "__main__":
    sys.exit(main())
