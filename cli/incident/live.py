"""The incident on a running stack: the node publishes to Kafka, and what is shown is what the store answers."""

import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ...audit.history import Question
from ...audit.render import render_history
from ...audit.stored import StoredArchive
from ...cache_node.entry_store import EntryStore
from ...producers.facts import publish_fact
from ...producers.kafka import KafkaTransport
from ...producers.publisher import LifecyclePublisher
from ...schemas.errors import BrokerError
from ...schemas.facts import Fact
from ...schemas.findings import Finding
from ...schemas.homes import node_home, partition_of
from ...schemas.topics import LIFECYCLE
from ...store import queries
from ...store.client import connect
from ..local.kafka import run_apart
from ..local.stack import LocalStack
from ..screen import colourful, say, say_path, step
from . import telling
from .account import problems
from .loading import Loading
from .recording import Recorder, Tee
from .scenario import play
from .settled import settled
from .steps import Chapter, Played
from .watch import Watch

FINDING_S = 60.0
SETTLED_S = 60.0
NODE = "cache-node-1"
CRASH_AFTER = ("again", "after the edit")
"""The first crash is over, or not, when the wrong hit comes; the second one meets findings half way to the store."""


class Live:
    """One live run on a started stack."""

    def __init__(self, stack: LocalStack, loading: Loading, *, crash: bool) -> None:
        self.stack = stack
        self.config = stack.config
        self.loading = loading
        self.crash = crash
        self.recorder = Recorder()
        self.played: list[Played] = []
        self.colour = colourful(sys.stdout)
        self.width = min(shutil.get_terminal_size((100, 40)).columns, 120)

    @property
    def console(self) -> str:
        """The console's address."""
        return f"http://{self.config.serve.host}:{self.config.serve.port}"

    def run(self) -> list[str]:
        """The whole incident; what was not as it must be, in sentences."""
        say(f"Console: {self.console}")
        with step("SmolLM2-135M-Instruct, on the CPU"):
            self.model = self.loading.result()
        say()
        say(telling.paragraph(telling.INTRODUCTION, self.width))
        watch = Watch(self.config.clickhouse)
        publisher = LifecyclePublisher(NODE, Tee(KafkaTransport(self.config.kafka), self.recorder))
        try:
            self._play(publisher, watch)
            if not publisher.close(30.0):
                raise BrokerError("did not take every event in time.", field="kafka.bootstrap", remedy="See its log.")
            self._settle()
            findings = [found for found in watch.findings() if publisher.incarnation in found.subject]
            failed = problems(self.played, findings) + self._stored(publisher)
        finally:
            watch.stop()
            publisher.close(1.0)
        self._show(findings, publisher.stats().accepted, failed)
        return failed

    def write(self, path: Path) -> None:
        """The recording of this run."""
        import torch
        import transformers

        self.recorder.write(
            path,
            deployment=self.config.deployment,
            model=self.model.name,
            weights_digest=self.model.deployment.weights_digest,
            versions={"torch": str(torch.__version__), "transformers": transformers.__version__},
        )
        say(f"Recorded to {path}")

    def invite(self) -> None:
        """What can be done while everything runs."""
        say(f"Everything stays up. Console: {self.console}", style="green")
        if sys.stdout.isatty():  # a link signs in: it belongs on a screen, not in a log
            from ...audit.console.server import console_link

            say(f"  sign in, once, within ten minutes: {console_link(self.config)}")
        say("In another terminal:")
        say_path()
        say(f"  export KVTRAIL_LOCAL__DIRECTORY={self.stack.directory}")
        say("  kvtrail serve --link")
        say("  kvtrail findings --incidents")
        say(f"  kvtrail investigate --request {self._wrong().request_id}")
        say("Ctrl-C stops everything.")

    def farewell(self, failed: list[str]) -> None:
        """What to do next."""
        if failed:
            say(f"Logs: {self.stack.logs}")
            return
        say("Next:")
        say_path()
        say(
            "  kvtrail demo --keep     the same, and everything stays up: the console, and every command to look around"
        )
        say("  kvtrail demo --crash    the same, with kill -9 of detector and sink in the middle")
        say("  kvtrail up              the stack alone, for a node of your own")

    def _play(self, publisher: LifecyclePublisher, watch: Watch) -> None:
        folder = self.stack.directory / "nvme"
        shutil.rmtree(folder, ignore_errors=True)
        chapter: Chapter | None = None
        with EntryStore(folder, publisher, capacity_bytes=1 << 30) as store:
            for played in play(self.model, store, publisher, self._fact, run=f"demo-{secrets.token_hex(3)}"):
                if played.step.chapter != chapter:
                    self._end_of(chapter)
                    chapter = played.step.chapter
                    say()
                    say(telling.head(played.step.chapter, self.colour))
                self.played.append(played)
                self.recorder.answer(played)
                say(telling.told(played, self.colour))
                if self.crash and played.step.name in CRASH_AFTER:
                    for name in ("detect", "sink"):
                        self.stack.kill(name)
                if played.step.finding:
                    self._await(played, watch)
            self._end_of(chapter)

    def _end_of(self, chapter: Chapter | None) -> None:
        if chapter in telling.ENDS:
            say(telling.paragraph(telling.ENDS[chapter], self.width))

    def _await(self, played: Played, watch: Watch) -> None:
        started = time.monotonic()
        seen = watch.wait_for(played.request_id, 1.0)
        if seen is None:
            with step("Waiting for the finding"):
                seen = watch.wait_for(played.request_id, FINDING_S - (time.monotonic() - started))
        if seen is not None:
            say(telling.found(seen.finding, self.width, self.colour, seen.seconds))

    def _fact(self, fact: Fact) -> None:
        publish_fact(self.config.kafka, fact)
        self.recorder.fact(fact)

    def _settle(self) -> None:
        say()
        with step("Every event judged and stored"):
            run_apart(settled(self.config, SETTLED_S))

    def _stored(self, publisher: LifecyclePublisher) -> list[str]:
        """What of the published events is missing in the store, or there more than once, in sentences."""
        home, accepted = node_home(NODE), publisher.stats().accepted
        with connect(self.config.clickhouse) as client:
            runs = [
                (run.first, run.last)
                for run in queries.LANE_INTERVALS.run(
                    client, topic=LIFECYCLE, partition=partition_of(home, self.config.kafka.partitions)
                )
                if (run.home, run.incarnation) == (home, publisher.incarnation)
            ]
            copies = queries.DUPLICATES.run(client)
        missing = [] if runs == [(1, accepted)] else [f"Of {accepted} events the store has only {runs}."]
        return missing + [f"Event {row.id} is stored {row.copies} times." for row in copies]

    def _show(self, findings: Sequence[Finding], events: int, failed: list[str]) -> None:
        say()
        say(telling.side_by_side(self.played, self.width, self.colour))
        say()
        asked = self._wrong().request_id
        say("The history of the request that contoso complains about, as this command shows it while the stack runs:")
        say(f"   kvtrail investigate --request {asked}")
        archive = StoredArchive(lambda: connect(self.config.clickhouse))
        history = archive.investigate(Question(kind="request", value=asked))
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        say(render_history(history, width=width, colour=self.colour))
        say()
        if failed:
            for sentence in failed:
                say(f"✗ {sentence}", style="red")
        else:
            say(
                f"✓ {events} events, each stored once; 2 wrong answers, 2 findings; 7 right answers, none.",
                style="green",
            )

    def _wrong(self) -> Played:
        return next(played for played in self.played if played.step.finding)
