"""The one error tree.

Every error kvtrail raises on purpose derives from `KvtrailError`, names the *field* it is about and says
what to do (*remedy*). Values never appear in a message: a value may be a prompt or a secret.

Two branches must not be confused. `BadInput` is about data: the record is kept, counted, and the data beside it
proceeds. Everything else is about the running system.
"""

from typing import ClassVar


class KvtrailError(Exception):
    """Root of the tree.

    `code` is stable and machine readable (metrics, dead letters); `field` is a dotted path into the offending
    input or configuration, empty when the error is about no field; `remedy` is an imperative sentence.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, field: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.remedy = remedy

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        then = f" {self.remedy}" if self.remedy else ""
        return f"{where}{self.message}{then}"

    def at(self, prefix: str) -> "KvtrailError":
        """The same error, its field seen from one level further out."""
        self.field = f"{prefix}.{self.field}" if self.field else prefix
        return self


class BadInput(KvtrailError):
    """A record, event, fact or digest that must be refused, kept and counted."""

    code = "bad_input"


class UndecodableRecord(BadInput):
    """The bytes are not JSON, or not the shape of any record."""

    code = "undecodable_record"


class UnknownSchemaVersion(BadInput):
    """The record announces a schema version this build does not know."""

    code = "unknown_schema_version"


class BrokenRun(BadInput):
    """An envelope whose events are not the contiguous run `first`..`last` it announces."""

    code = "broken_run"


class InvalidField(BadInput):
    """A field has the wrong type, an impossible value, or is missing."""

    code = "invalid_field"


class NameInDigestPlace(BadInput):
    """A name, label or version stands where a digest of content belongs."""

    code = "name_in_digest_place"


LONGEST_UNKNOWN = 256
"""Bytes of JSON that a field or dimension of a newer producer may have, its name included."""
LARGEST_UNKNOWN = 1024
"""And all of them in one object."""


class ForeignContent(BadInput):
    """A field that no schema knows holds text or numbers at length: prompts and tokens do not belong in an event."""

    code = "foreign_content"


class EmptyTenant(BadInput):
    """An identity without a tenant: nothing about isolation could be judged."""

    code = "empty_tenant"


class ConfigError(KvtrailError):
    """The configuration contradicts itself, breaks a guarantee, or names something that does not exist."""

    code = "config"


class MissingExtra(ConfigError):
    """A command needs packages that this installation does not have."""

    code = "missing_extra"


class StackError(KvtrailError):
    """The local stack (Java, Maven, ports, disk, broker, store) could not be brought up or has gone away."""

    code = "stack"


class StoreError(KvtrailError):
    """ClickHouse refused or failed. Subclasses say whether trying again can help."""

    code = "store"


class StoreUnavailable(StoreError):
    """Transient: the same request may succeed later."""

    code = "store_unavailable"


class StoreRejected(StoreError):
    """ClickHouse understood the request and will never accept it as it is."""

    code = "store_rejected"


class StoreRefused(StoreError):
    """Authentication or authorization failed: a person has to act."""

    code = "store_refused"


class BrokerError(KvtrailError):
    """Kafka is unreachable, or its topics are not what kvtrail needs."""

    code = "broker"
