"""Two databases that should hold the same, compared row by row; what differs is told by its first difference."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvtrail.judging.incidents import fold
from kvtrail.schemas.config import Config
from kvtrail.schemas.context import RESOLVER
from kvtrail.schemas.findings import Finding
from kvtrail.store import queries
from kvtrail.store.client import Client, connect
from kvtrail.store.migrate import migrate
from kvtrail.tests.streams import undisturbed
from kvtrail.tests.streams.harness import final

_MANY = 1_000_000
_PLACE = "k_topic, k_partition, k_offset"

ROWS = {
    "events": "SELECT id, * EXCEPT (inserted_at) FROM events",
    "evidence": """SELECT * EXCEPT (raw, inserted_at, sha256), hex(sha256) AS noted, hex(SHA256(raw)) AS bytes
  FROM evidence""",
    "rollup by minute": """SELECT minute, tenant_id, type, store, tier, kind, model_id, template_id, outcome,
  sum(m.n) AS n, sum(m.tokens) AS tokens, sum(m.reused_tokens) AS reused_tokens, sum(m.bytes) AS bytes,
  max(m.lag_max_ms) AS lag_max_ms FROM per_minute AS m
  GROUP BY minute, tenant_id, type, store, tier, kind, model_id, template_id, outcome""",
    "lookups": """SELECT minute, tenant_id, store, tier, model_id, template_id, sum(l.hit) AS hit,
  sum(l.partial) AS partial, sum(l.miss) AS miss, sum(l.bypassed) AS bypassed FROM lookups AS l
  GROUP BY minute, tenant_id, store, tier, model_id, template_id""",
    "provenance": """SELECT store, key, min(e.first_seen) AS first, max(e.last_seen) AS last,
  max(e.last_append) AS appended, sum(e.creates) AS creates, sum(e.hits) AS hits, sum(e.expiries) AS expiries,
  sum(e.invalidations) AS invalidations, sum(e.reused_tokens) AS reused_tokens,
  arraySort(groupUniqArrayIfMerge(64)(e.creators)) AS creators,
  arraySort(groupUniqArrayIfMerge(64)(e.readers)) AS readers, argMinIfMerge(e.creator) AS creator,
  argMaxIfMerge(e.last_creator) AS last_creator FROM entry AS e GROUP BY store, key""",
    "resolutions": "SELECT * EXCEPT (inserted_at) FROM resolutions",
    "facts": f"SELECT DISTINCT * EXCEPT (inserted_at) FROM facts ORDER BY {_PLACE}",
    "dead letters": """SELECT topic, partition_id, record_offset, event_index, seq, stage, code, field, message, remedy,
  at, node, incarnation, home, base64Encode(raw) AS bytes FROM dead_letters
  LIMIT 1 BY topic, partition_id, record_offset, event_index, stage, code""",
    "findings": f"SELECT finding FROM ({queries.FINDINGS_CURRENT.sql})",
    # A revision is written again after a crash, and must then say what it said before.
    "revisions": "SELECT DISTINCT id, revision, finding FROM findings",
    "incidents": f"SELECT * FROM ({queries.INCIDENTS.sql})",
}
"""What is compared. Not when something was inserted, and not sketches, which depend on the order of merging."""

_PARAMETERS = {
    "findings": {**queries.FINDINGS_CURRENT.defaults, "status": "", "limit": _MANY},
    "incidents": {**queries.INCIDENTS.defaults, "limit": _MANY},
}


class Difference(NamedTuple):
    """Rows that are not on both sides: how many, and the first of each side, empty for none."""

    what: str
    live: int
    undisturbed: int
    first_live: str
    first_undisturbed: str

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.live} row(s) only live, {self.undisturbed} only undisturbed\n"
            f"  first live:        {self.first_live or '-'}\n  first undisturbed: {self.first_undisturbed or '-'}"
        )


class Account(NamedTuple):
    """What was compared, in rows, every difference, and the revisions of the undisturbed run."""

    compared: dict[str, int]
    differences: list[Difference]
    revisions: Sequence[Finding] = ()


def compare(config: Config, database: str = "undisturbed", *, fleet: bool = False) -> Account:
    """The store of `config` against one undisturbed offline run over the log of its broker, which is written into
    `database`, a fresh one beside it. `fleet`: a fleet worker ran, and the log has something of each kind for it."""
    log = undisturbed.read_log(config)
    revisions = undisturbed.judged(config, log)
    found = undisturbed.fleet_judged(config, log) if fleet else []
    revisions += found
    beside = config.clickhouse.model_copy(update={"database": database})
    with connect(beside) as other:
        migrate(other, config.model_copy(update={"clickhouse": beside}))
        undisturbed.store(other, config, log, revisions)
    with connect(config.clickhouse) as live, connect(beside) as other:
        account = compare_rows(live, other)
        account.differences.extend(_beside_the_tables(config, live, log, revisions))
    for cause in undisturbed.FLEET_CAUSES if fleet else ():
        account.compared[f"revisions of {cause}"] = sum(finding.cause == cause for finding in found)
        if not account.compared[f"revisions of {cause}"]:
            account.differences.append(Difference(f"{cause} never occurred", 0, 0, "", ""))
    return account._replace(revisions=revisions)


def compare_rows(live: Client, other: Client) -> Account:
    """Row by row, everything in `ROWS`."""
    compared: dict[str, int] = {}
    differences: list[Difference] = []
    for what, sql in ROWS.items():
        sides = [_lines(client, what, sql) for client in (live, other)]
        compared[what] = len(sides[1])
        differences += difference(what, *sides)
    return Account(compared, differences)


def difference(what: str, live: Sequence[str], other: Sequence[str]) -> list[Difference]:
    """Rows of two sides, each as often as it is there. Nothing where both sides hold the same."""
    more, less = _without(live, other), _without(other, live)
    if not more and not less:
        return []
    return [Difference(what, len(more), len(less), min(more, default=""), min(less, default=""))]


def _without(rows: Sequence[str], others: Iterable[str]) -> list[str]:
    left: dict[str, int] = {}
    for row in others:
        left[row] = left.get(row, 0) + 1
    found = []
    for row in rows:
        if left.get(row):
            left[row] -= 1
        else:
            found.append(row)
    return found


def _lines(client: Client, what: str, sql: str) -> list[str]:
    found = client.query(f"SELECT formatRowNoNewline('JSONEachRow', *) AS line FROM ({sql})", _PARAMETERS.get(what, {}))
    return [str(row["line"]) for row in found]


def _beside_the_tables(
    config: Config, live: Client, log: undisturbed.Log, revisions: list[Finding]
) -> Iterable[Difference]:
    """What no table holds: the fold into incidents, the ledger of batches, the resolutions that should be there."""
    current = queries.FINDINGS_CURRENT.run(live, status="", limit=_MANY)
    yield from difference(
        "incidents folded", [repr(one) for one in fold(current)], [repr(one) for one in fold(final(revisions).values())]
    )
    yield from difference("holes between batches", [repr(one) for one in queries.BATCH_GAPS.run(live)], [])
    yield from difference("events stored twice", [repr(one) for one in queries.DUPLICATES.run(live)], [])
    made, _ = undisturbed.resolved(config.resolver, log)
    stored = live.query(f"SELECT id FROM events WHERE node = '{RESOLVER}'")
    yield from difference("resolved", [str(row["id"]) for row in stored], [*made])
