"""What a fleet worker knows: the judge, what waits for its order, and where to read on after a restart. Pure."""

from typing import Any

import msgspec

from ..judging.errors import SnapshotError
from ..judging.fleet import FleetJudge
from ..judging.fleet_snapshot import dump_fleet, encode_fleet, load_fleet
from ..schemas.config import JudgingConfig
from ..schemas.findings import Finding
from .fleet_merge import Merge
from .observing import Observations

VERSION = 1


class FleetState:
    """`next`: of the observations topic, the next record by partition; `resume`: the one from which on something still
    waits, where a restart must read on. `request_s`: a request that named what it needs is over after that time."""

    def __init__(self, judge: FleetJudge, request_s: float) -> None:
        self.judge, self.merge = judge, Merge()
        self.next: dict[int, int] = {}
        self.observations = 0
        self.changed = False
        self._second = 0
        self._request_us = round(request_s * 1e6)
        self._read: dict[int, list[tuple[int, int, int]]] = {}
        """By partition: records of which something may wait: their offset, and which record they are about last."""

    def take(self, partition: int, offset: int, record: Observations) -> None:
        """A record of the observations topic."""
        self.changed = True
        self.merge.take(record)
        if record.observed:
            last = record.observed[-1].offset
            self._read.setdefault(partition, []).append((offset, record.partition, last))

    def fold(self, until_us: int, most: int, *, closing: bool) -> list[Finding]:
        """Fold what was appended up to `until_us`, in order. `closing`: nothing more of that can come."""
        findings: list[Finding] = []
        for append_us, _, _, observations in self.merge.release(until_us, most):
            self.changed = True
            findings += self._over(append_us)
            for observation in observations:
                findings += self.judge.take(observation, append_us)
            self.observations += len(observations)
        if closing:
            over = self._over(until_us)
            self.changed = self.changed or bool(over)
            findings += over
        return findings

    def _over(self, now_us: int) -> list[Finding]:
        """Requests that are over by now, looked at once a second of the broker's time: the same in every life."""
        second = now_us // 1_000_000
        if second == self._second:
            return []
        self._second = second
        return self.judge.over(second * 1_000_000 - self._request_us)

    @property
    def resume(self) -> dict[int, int]:
        """Where to read on after a restart: nothing before is still waiting."""
        at = dict(self.next)
        for partition, read in self._read.items():
            read[:] = [one for one in read if one[2] > self.merge.folded.get(one[1], (-1, 0))[0]]
            if read:
                at[partition] = read[0][0]
        return at

    def dump(self) -> dict[str, Any]:
        """A copy that may be encoded in another thread."""
        return {
            "v": VERSION, "judge": dump_fleet(self.judge), "folded": list(self.merge.folded.items()),
            "resume": list(self.resume.items()), "observations": self.observations,
        }  # fmt: skip

    @staticmethod
    def encode(dumped: dict[str, Any]) -> bytes:
        """What `dump` gave, as bytes."""
        return msgspec.msgpack.encode({**dumped, "judge": encode_fleet(dumped["judge"])})

    def load(self, raw: bytes, settings: JudgingConfig, deployment: str) -> None:
        """Continue from what `encode` gave. Raises `SnapshotError`."""
        try:
            state = msgspec.msgpack.decode(raw)
            if state["v"] != VERSION:
                raise SnapshotError("is of another version.", field="snapshot.v", remedy="It is built anew.")
            self.judge = load_fleet(state["judge"], settings, deployment)
            self.merge = Merge({partition: (offset, at_us) for partition, (offset, at_us) in state["folded"]})
            self.next = dict(state["resume"])
            self.observations = state["observations"]
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise SnapshotError("is damaged.", field="snapshot", remedy="It is built anew.") from error
