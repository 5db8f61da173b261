"""What belongs to kvtrail itself: the heartbeat's node, homes and tenants, which no report may show.

One definition for everybody. A tenant is reserved by its prefix; only the heartbeat's node may speak of such a
tenant, and only of such, in homes of its own. Whoever decodes a record refuses the rest, so that nobody takes a
fleet's events out of the reports by giving them a reserved name.
"""

from functools import cache

from .errors import InvalidField
from .findings import Finding
from .homes import node_home, partition_of

PREFIX = "kvtrail:"
"""Tenants and owners that begin so are kvtrail's own."""
HEARTBEAT_NODE = f"{PREFIX}heartbeat"
CREATOR = f"{PREFIX}heartbeat-a"
REQUESTER = f"{PREFIX}heartbeat-b"
HEARTBEAT_STORE = f"{PREFIX}heartbeat"
_HOMES = node_home(PREFIX)


def is_reserved(name: str) -> bool:
    """Whether this tenant, node or owner is kvtrail's own."""
    return name.startswith(PREFIX)


def is_reserved_home(home: str) -> bool:
    """Whether this home is the heartbeat's."""
    return home.startswith(_HOMES)


def check_node(node: str, home: str) -> None:
    """Raises `InvalidField` where a node takes a reserved name, or where only one of node and home is the
    heartbeat's."""
    if is_reserved_home(home) is not (node == HEARTBEAT_NODE):
        raise InvalidField(f"belongs to a node of its own ({PREFIX}...).", field="home", remedy="Name another owner.")
    if is_reserved(node) and node != HEARTBEAT_NODE:
        raise InvalidField(f"must not begin with {PREFIX!r}.", field="node", remedy="Choose another name.")


def check_tenant(node: str, tenant_id: str, field: str = "identity.tenant_id") -> None:
    """Raises `InvalidField` where a node speaks of a tenant that is not for it: reserved ones are the heartbeat's."""
    if is_reserved(tenant_id) is not (node == HEARTBEAT_NODE):
        raise InvalidField(
            f"must not begin with {PREFIX!r}: such tenants are kvtrail's own and appear in no report."
            if node != HEARTBEAT_NODE
            else "is not the heartbeat's own.",
            field=field,
            remedy="Send the tenant that asked.",
        )


def is_own(finding: Finding) -> bool:
    """Whether a finding is about the heartbeat and nothing else: it belongs into no report."""
    parties = (finding.creator, finding.requester)
    return is_reserved_home(finding.home) and all(
        is_reserved(party.tenant_id) for party in parties if party is not None and party.tenant_id
    )


@cache
def owners(partitions: int) -> tuple[str, ...]:
    """For each partition an owner whose home lands there: a heartbeat reaches every one of them."""
    found: dict[int, str] = {}
    attempt = 0
    while len(found) < partitions:
        owner = f"{HEARTBEAT_NODE}-{attempt}"
        found.setdefault(partition_of(node_home(owner), partitions), owner)
        attempt += 1
    return tuple(found[partition] for partition in range(partitions))
