"""Imports asyncio without OpenSSL, for an exporter that serves plain HTTP."""

from __future__ import annotations

import sys


def import_asyncio(*, tls: bool) -> None:
    """Import asyncio, and without `tls` not the module `ssl`, whose OpenSSL takes 4 MiB of RAM.

    asyncio runs in a Python that was built without `ssl`, and then refuses TLS. Other modules can still import `ssl`.
    Does nothing if asyncio or `ssl` is imported already.
    """
    if tls or sys.modules.keys() & {"asyncio", "ssl"}:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # this makes its import fail
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]
