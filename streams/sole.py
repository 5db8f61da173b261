"""One member of a group has everything, the others stand by: for workers whose state is not by partition."""

from collections.abc import Mapping
from typing import Any

from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment


class SoleAssignor(RoundRobinPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """All partitions to the member whose id comes first; a static member's id begins with its instance name."""

    name = "sole"

    @classmethod
    def assign(cls, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """As aiokafka asks for it."""
        first = min(members)
        others = {member: ConsumerProtocolMemberAssignment(cls.version, [], b"") for member in members}
        return {**others, **super().assign(cluster, {first: members[first]})}
