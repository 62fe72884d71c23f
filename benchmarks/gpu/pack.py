"""Fill a folder with wheels of what the check needs beside torch and transformers, for another machine's Python.

    benchmarks/gpu_check.sh --pack DIR --python 3.12 [--without pyarrow pandas] [--version datasets==4.8.0]

Run where the project is installed and an index can be reached. The versions are those of this environment, which are
the ones tested; --version takes another one of a package, --without leaves out what is there already.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu.requirements import ROOT, closure, direct, project_requirements

THERE = ("torch", "transformers")
GLIBC = (5, 12, 17, 24, 26, 27, 28)
"""manylinux_2_N: the oldest that wheels are built for, up to the glibc of Debian 10 and Ubuntu 20.04."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu_check.sh --pack", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder for the wheels; made if it is not there")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, help=f"the other machine's Python (default: {here})")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="packages that are there already")
    parser.add_argument("--version", nargs="+", default=[], metavar="NAME==VERSION", help="other versions than here")
    args = parser.parse_args(arguments)
    try:
        pins = wanted(args.python, args.without, args.version)
    except PackageNotFoundError as error:
        parser.error(f"{error.name} is not installed here: use an environment that `make setup` has made")
    args.folder.mkdir(parents=True, exist_ok=True)
    if there := sorted(args.folder.glob("*.whl")):
        parser.error(f"{args.folder} holds {there[0].name} already: two versions of a package would clash; empty it")
    platforms = [f"manylinux_2_{n}_x86_64" for n in GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    download = [*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(args.folder)]
    download += ["--python-version", args.python, "--implementation", "cp"]
    download += [part for name in platforms for part in ("--platform", name)]
    subprocess.run([*download, *pins], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(args.folder), str(ROOT)], check=True)
    size = sum(path.stat().st_size for path in args.folder.glob("*.whl"))
    print(f"{len(pins) + 1} wheels for Python {args.python}, {size / 2**20:.0f} MiB, in {args.folder}")


def wanted(python: str, without: list[str], versions: list[str]) -> list[str]:
    """NAME==VERSION of every package to carry, for x86-64 Linux.

    torch, transformers and what these two require themselves are there by assumption, and must not be shadowed.
    """
    target = {
        "python_version": python,
        "python_full_version": f"{python}.99",  # of a late release: what the first ones lacked is not carried
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    other = dict(pin.split("==", 1) for pin in versions)
    left_out = [*THERE, *(name for there in THERE for name in direct(there)), "hf-xet", *without]
    names = closure(project_requirements(), without=left_out, target=target)
    if unknown := sorted(set(other) - set(names)):
        raise SystemExit(f"--version {unknown[0]}: not one of the packages to carry, which are {', '.join(names)}")
    return [f"{name}=={other.get(name) or version(name)}" for name in names]


if __name__ == "__main__":
    main()
