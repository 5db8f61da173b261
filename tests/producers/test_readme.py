"""The list of the agent's metrics on the room's page is the list that the agent serves."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from kvtrail.producers.agent import Agent, Counts
from kvtrail.producers.agent_metrics import AgentMetrics
from kvtrail.producers.memory import MemoryTransport
from kvtrail.producers.spool import Spool
from kvtrail.producers.spooled import SpooledTransport

PAGE = Path(__file__).parents[2] / "producers" / "README.md"


def test_every_metric_of_the_agent_is_on_the_page(tmp_path: Path) -> None:
    line = SpooledTransport(MemoryTransport(), Spool(tmp_path, "agent", "1", max_bytes=1 << 20))
    agent = cast("Agent", SimpleNamespace(counts=Counts()))
    served = set(re.findall(r"^kvtrail_agent_(\w+) ", AgentMetrics(agent, line).text(), re.MULTILINE))
    table = PAGE.read_text().split("`kvtrail_agent_`:")[1].split("\n\n")[1]
    assert set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines()))) == served
