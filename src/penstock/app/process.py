"""What every program does: logging, TLS, and writing where it listens."""

from __future__ import annotations

import gc
import logging
import os
import ssl
import sys
from pathlib import Path
from typing import Final

from penstock.kernel.errors import Rejected

SWITCH_S: Final = 0.0002
"""The thread switch interval: short, so that the loop's threads do not wait for the loop."""
COLLECT_AFTER: Final = (20_000, 20, 20)
"""Thresholds of the garbage collector. Neither connections nor records nor messages leave reference
cycles: at Python's default thresholds, looking for them took a fortieth of the time of batched
writes."""


def set_up_interpreter() -> None:
    """Have threads take turns quickly, and look for reference cycles rarely."""
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*COLLECT_AFTER)


def set_up_logging(level: str) -> None:
    """Log to standard error, from the given level on."""
    if level == "off":
        logging.disable(logging.CRITICAL)
        return
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The TLS context of a listener, from two PEM files; None if they are not given."""
    if cert is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise Rejected(f"cannot use the certificate {cert} with the key {key}: {error}") from error
    return context


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader never sees part of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
