"""Tokens, which a client shows beyond this machine: only their hashes are kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import time

from chanas.errors import ConfigError
from chanas.service.store.database import Database

LOCAL = "local"
"""The tenant of a service without tokens, which listens on this machine alone."""

_ID_BYTES, _SECRET_BYTES = 6, 32
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


def check_tenant(tenant: str) -> None:
    """Raises ConfigError: it is no name of a tenant."""
    if not _TENANT.fullmatch(tenant):
        raise ConfigError(f"expected a tenant of at most 40 of a-z, 0-9, '_' and '-', got '{tenant}'")


def add_token(database: Database, tenant: str) -> str:
    """Make a token of a tenant; nothing but what is returned says it ever again.

    Raises:
        ConfigError: the tenant's name is none.
    """
    check_tenant(tenant)
    number, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    row = (number, tenant, _hash(number, secret), time.time())
    database.write(lambda db: db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", row)).result()
    return f"{number}.{secret}"


def remove_token(database: Database, number: str) -> None:
    """Refuse a token from now on.

    Raises:
        ConfigError: there is none of this number.
    """

    def change(db: sqlite3.Connection) -> int:
        return db.execute("DELETE FROM tokens WHERE id=?", (number,)).rowcount

    if not database.write(change).result():
        raise ConfigError(f"there is no token '{number}'; `chanas serve token list` shows them")


def list_tokens(database: Database) -> list[tuple[str, str, float]]:
    """Number, tenant and time of making (seconds since 1970) of each token."""
    rows = database.read().execute("SELECT id, tenant, created FROM tokens ORDER BY created")
    return [(row["id"], row["tenant"], row["created"]) for row in rows]


def has_tokens(database: Database) -> bool:
    """True where a token is demanded."""
    return database.read().execute("SELECT 1 FROM tokens LIMIT 1").fetchone() is not None


def tenant_of(database: Database, token: str) -> str | None:
    """The tenant whose token this is; None where it is nobody's. Hashes are compared in constant time."""
    number, _, secret = token.partition(".")
    row = database.read().execute("SELECT tenant, hash FROM tokens WHERE id=?", (number,)).fetchone()
    known = "" if row is None else row["hash"]
    if not hmac.compare_digest(_hash(number, secret).encode(), known.encode()):
        return None
    return str(row["tenant"])


def _hash(number: str, secret: str) -> str:
    """SHA-256, salted with the token's number; 256 random bits need no slow hash."""
    return hashlib.sha256(f"{number}.{secret}".encode()).hexdigest()
