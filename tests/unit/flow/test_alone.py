"""The flow library can be used alone."""

from __future__ import annotations

import subprocess
import sys


def test_importing_flow_needs_nothing_but_the_standard_library_and_the_kernel() -> None:
    program = (
        "import importlib, pkgutil, sys; before = set(sys.modules); from penstock import flow;"
        "modules = pkgutil.iter_modules(flow.__path__, 'penstock.flow.');"
        "[importlib.import_module(module.name) for module in modules];"
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}));"
        "print(*sorted(m for m in sys.modules if m.startswith('penstock.')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    outside = set(found[0].split()) - set(sys.stdlib_module_names) - {"penstock"}
    assert not {name for name in outside if not name.startswith("_") and "__mypyc" not in name}
    assert {name.split(".")[1] for name in found[1].split()} == {"flow", "kernel"}
    assert "asyncio" not in found[0].split()
    assert "threading" not in found[0].split()
