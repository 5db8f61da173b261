"""compose/clickhouse/users.xml on the real engine: each user can do its work, and nothing else.

chDB has one user, so each of ours lends it its grants and profile, in a process of its own (an engine's users are
read once).
"""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from string import Template
from typing import Any

import pytest
from kvtrail.dashboards.macros import Window, expand
from kvtrail.dashboards.queries import QUERIES
from kvtrail.store.migrate import migrations
from kvtrail.tests.compose.project import COMPOSE

pytestmark = pytest.mark.engine

_RUN = """
import json, sys
from chdb import session
engine = session.Session(sys.argv[1])
answers = []
for sql in json.load(sys.stdin):
    try:
        answers.append(str(engine.query(sql, "TSV")).strip())
    except Exception as error:
        answers.append("refused" if "Code: 497" in str(error) or "Code: 164" in str(error) else f"failed: {error}")
engine.close()
json.dump(answers, sys.stdout)
"""

SETUP = [
    "CREATE DATABASE IF NOT EXISTS kvtrail",
    *[
        Template(statement.sql).substitute(database="kvtrail", events_days="400", evidence_days="2555")
        for migration in migrations()
        for statement in migration.statements
    ],
]
EVENT = (
    "INSERT INTO kvtrail.events_in (tenant_id, type, event_time, append_time) VALUES ('a', 'hit', now64(6), now64(6))"
)
ESCAPES = [
    "CREATE DATABASE other", "CREATE USER u", "DROP DATABASE kvtrail", "SELECT 1 FROM url('http://127.0.0.1:1/')",
    "SELECT 1 FROM file('/etc/passwd', 'LineAsString')",
]  # fmt: skip


def engine_as(user: str, directory: Path, statements: list[str]) -> list[str]:
    """What the statements answer when the engine's user has the grants and profile of this one."""
    ours = ET.parse(COMPOSE / "clickhouse" / "users.xml").getroot()
    declared = ours.find(f"users/{user}")
    profiles = ours.find("profiles")
    assert declared is not None and profiles is not None
    root = ET.Element("clickhouse")
    ET.SubElement(profiles, "default")
    root.append(profiles)
    ET.SubElement(ET.SubElement(root, "quotas"), "default")
    lent = ET.SubElement(ET.SubElement(root, "users"), "default")
    ET.SubElement(lent, "password")
    for name in ("networks", "profile", "quota", "grants"):
        part = declared.find(name)
        assert part is not None
        lent.append(part)
    (directory / f"{user}.xml").write_bytes(ET.tostring(root))
    config = directory / f"{user}-config.xml"
    config.write_text(f"<clickhouse><users_config>{directory / user}.xml</users_config></clickhouse>")
    done = subprocess.run(
        [sys.executable, "-c", _RUN, f"{directory / 'store'}?config-file={config}"],
        input=json.dumps(statements), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    answers: list[Any] = json.loads(done.stdout)
    return [str(answer) for answer in answers]


def test_workers_can_make_the_schema_and_write_and_grafana_can_only_read(tmp_path: Path) -> None:
    made = engine_as("kvtrail", tmp_path, [*SETUP, EVENT, "SELECT count() FROM kvtrail.events", *ESCAPES])
    assert made == [""] * (len(SETUP) + 1) + ["1"] + ["refused"] * len(ESCAPES)

    window = Window(start_s=0, end_s=2_000_000_000, interval_s=86400, variables={"tenant": ()})
    reads = ["USE kvtrail", *[expand(query.text, window) for query in QUERIES]]
    answered = engine_as(
        "grafana", tmp_path, [*reads, "SET max_execution_time = 30", EVENT, "DROP TABLE kvtrail.events", *ESCAPES]
    )
    assert [answer for answer in answered[: len(reads) + 1] if answer.startswith(("refused", "failed"))] == []
    assert answered[len(reads) + 1 :] == ["refused"] * (2 + len(ESCAPES))
