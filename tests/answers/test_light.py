"""What importing and using answers must not bring with it."""

from __future__ import annotations

import subprocess
import sys


def test_neither_sympy_nor_math_verify_is_imported() -> None:
    code = (
        "import sys; from corl.answers import key, extract; key(r'\\sqrt{2}+x'); key('A', 'choice'); extract('x');"
        "print([name for name in ('sympy', 'math_verify', 'torch', 'numpy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
