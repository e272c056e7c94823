"""Credentials for a lake on S3, checked early: without them pyarrow takes many seconds to fail."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from penstock.kernel.errors import Rejected

_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
_METADATA: Final = "http://169.254.169.254/latest"
_METADATA_TIMEOUT_S: Final = 0.5
ADVICE: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; and AWS_REGION, or "
    "AWS_ENDPOINT_URL for a store that is not Amazon's"
)


def is_s3(root: str | None) -> bool:
    """Whether a data path is on S3."""
    return root is not None and root.startswith("s3://")


def check_credentials(root: str) -> None:
    """Reject a data path on S3 if no credentials can be found."""
    if not has_credentials(root):
        raise Rejected(f"expected credentials for {_plain(root)}, found none: {ADVICE}")


def has_credentials(root: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether credentials exist: in the path, the environment, a file, or an instance role."""
    environ = os.environ if environ is None else environ
    if urlsplit(root).username or any(environ.get(name) for name in _VARIABLES):
        return True
    home = Path(environ.get("HOME", "/"))
    files = (
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials",
        environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config",
    )
    if any(Path(file).exists() for file in files):
        return True
    return environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true" and _has_role()


def _has_role() -> bool:
    """Whether this is an EC2 instance with a role; elsewhere the request soon times out."""
    ask = Request(
        f"{_METADATA}/api/token", method="PUT",
        headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"},
    )  # fmt: skip
    try:
        with urlopen(ask, timeout=_METADATA_TIMEOUT_S) as answer:
            token = answer.read().decode()
        roles = Request(
            f"{_METADATA}/meta-data/iam/security-credentials/",
            headers={"X-aws-ec2-metadata-token": token},
        )
        with urlopen(roles, timeout=_METADATA_TIMEOUT_S) as answer:
            return bool(answer.read().strip())
    except (URLError, OSError, ValueError):
        return False


def _plain(root: str) -> str:
    """A path without any credentials in it."""
    parts = urlsplit(root)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
