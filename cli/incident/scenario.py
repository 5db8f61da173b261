"""Plays the incident on a real node: a real model, real tensors on disk, whatever comes out of it."""

from collections.abc import Callable, Iterator, Sequence

from ...cache_node.entry_store import EntryStore
from ...cache_node.keys import KeyFunction, name_and_model, prefix_key
from ...cache_node.model import LanguageModel
from ...cache_node.node import CacheNode
from ...cache_node.node_canary import NodeCanary
from ...cache_node.prefix import Prefix
from ...producers.facts import epoch_bumped
from ...producers.publisher import LifecyclePublisher
from ...schemas.facts import Fact
from .steps import EPOCH, STEPS, TEMPLATE, Played, Step

_KEY_FUNCTIONS: dict[str, KeyFunction] = {"name": name_and_model, "fingerprint": prefix_key}


def play(
    model: LanguageModel,
    store: EntryStore,
    publisher: LifecyclePublisher,
    publish_fact: Callable[[Fact], None],
    *,
    run: str,
    steps: Sequence[Step] = STEPS,
    canary: NodeCanary | None = None,
) -> Iterator[Played]:
    """Each request in turn, as it went. `run` makes request ids unique; `publish_fact` returns once the fact is out.

    With `canary` every answer is checked for its tenant's marker, and shown without it.

    The epoch is bumped before the first request that carries it: the fact is out before any prompt changes.
    """
    node = CacheNode(model, store, publisher, name_and_model, canary=canary)
    epoch = ""
    for number, step in enumerate(steps, 1):
        if step.epoch != epoch:
            epoch = step.epoch
            # What was published before the fact must be there before it.
            publisher.flush()
            publish_fact(epoch_bumped(EPOCH, why="contoso was served northwind's KV", source="kvtrail demo"))
        node.key_function = _KEY_FUNCTIONS[step.keyed_by]
        prefix = Prefix(step.tenant, TEMPLATE, step.system_prompt, step.epoch)
        answer = node.answer(prefix, step.question, f"{run}-{number}")
        yield Played(
            step=step,
            request_id=answer.request_id,
            answer=answer.text,
            key=answer.key.text,
            key_origin=answer.key.origin,
            hit=answer.hit,
            reused_tokens=answer.reused_tokens,
            computed_tokens=answer.computed_tokens,
            prefix_tokens=answer.prefix_tokens,
            seconds=answer.seconds,
        )
    node.report_lookups()
    publisher.flush()
