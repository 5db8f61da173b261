"""What is asked in the incident, by whom, in which order, and what the right answer would be.

Nothing here says what the model answers: that is whatever it answers.
"""

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

TEMPLATE = "support_v7"
EPOCH = "e2"
"""What the epoch is bumped to; before, the fleet never needed one."""
KEY_OF = {"name": 'f"{template_name}:{model}"', "fingerprint": "PrefixKey.fingerprint()"}
"""Key functions, as the application's code would show them."""

SYSTEM_PROMPT = """\
You are the support assistant of {shop}. Be friendly and answer in one short sentence.
Opening hours: our support team answers Monday to Friday, from 8 in the morning to 6 in the evening.
Shipping: orders are shipped within two working days. Standard shipping is free of charge. Express shipping costs 12 dollars.
Payment: we take credit cards, bank transfer and gift cards. We never ask for your card number in a chat.
Warranty: every electrical appliance has a warranty of two years. Keep your receipt.
Refund policy of {shop}: you can return an item within {days} days of delivery and you get the full price back. After {days} days no refund is possible.
If you do not know the answer, say that a colleague will call back."""  # noqa: E501  # one line a paragraph, as it is sent
HOW_MANY_DAYS = "How many days do I have to return an item?"
UNTIL_WHEN = "Until when can I send back an item I bought?"

Chapter = Literal["wrong key", "edited wording", "right key", "epoch bump"]


class Step(Struct, frozen=True, kw_only=True):
    """One request. `days` is what the tenant's own policy says, and so the right answer."""

    name: str
    chapter: Chapter
    tenant: str
    days: int
    question: str
    keyed_by: Literal["name", "fingerprint"] = "name"
    epoch: str = ""
    finding: str = ""
    """The cause of the finding this request must lead to; empty: none."""

    @property
    def system_prompt(self) -> str:
        """The template as rendered for this tenant."""
        return SYSTEM_PROMPT.format(shop=self.tenant.capitalize(), days=self.days)


class Played(Struct, frozen=True, kw_only=True):
    """One request as it went. `seconds` is the time to the whole answer."""

    step: Step
    request_id: str
    answer: str
    key: str
    key_origin: str
    hit: bool
    reused_tokens: int
    computed_tokens: int
    prefix_tokens: int
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the answer names the days of the tenant's own policy, and no others."""
        return set(days_in(self.answer)) == {self.step.days}


def days_in(answer: str) -> list[int]:
    """Every number of days that an answer names."""
    return [int(number) for number in re.findall(r"(\d+)[ -]days?\b", answer)]


STEPS: tuple[Step, ...] = (
    Step(name="first", chapter="wrong key", tenant="northwind", days=90, question=HOW_MANY_DAYS),
    Step(name="again", chapter="wrong key", tenant="northwind", days=90, question=UNTIL_WHEN),
    Step(
        name="other tenant", chapter="wrong key", tenant="contoso", days=14, question=HOW_MANY_DAYS,
        finding="CROSS_TENANT_REUSE",
    ),
    Step(
        name="after the edit", chapter="edited wording", tenant="northwind", days=21, question=HOW_MANY_DAYS,
        finding="TEMPLATE_MISMATCH",
    ),
    Step(
        name="first, right key", chapter="right key", tenant="northwind", days=90, question=HOW_MANY_DAYS,
        keyed_by="fingerprint",
    ),
    Step(
        name="again, right key", chapter="right key", tenant="northwind", days=90, question=UNTIL_WHEN,
        keyed_by="fingerprint",
    ),
    Step(
        name="other tenant, right key", chapter="right key", tenant="contoso", days=14, question=HOW_MANY_DAYS,
        keyed_by="fingerprint",
    ),
    Step(
        name="after the edit, right key", chapter="right key", tenant="northwind", days=21, question=HOW_MANY_DAYS,
        keyed_by="fingerprint",
    ),
    Step(
        name="other tenant, next epoch", chapter="epoch bump", tenant="contoso", days=14, question=HOW_MANY_DAYS,
        epoch=EPOCH,
    ),
)  # fmt: skip
"""The requests in order. The last one goes through the wrong key again, one epoch later."""


def pairs(played: Sequence[Played]) -> list[tuple[Played, Played]]:
    """The same request under the wrong key and under the right one, where both were made."""
    right = {(p.step.tenant, p.step.days, p.step.question): p for p in played if p.step.keyed_by == "fingerprint"}
    return [
        (p, right[at])
        for p in played
        if p.step.keyed_by == "name"
        and not p.step.epoch
        and (at := (p.step.tenant, p.step.days, p.step.question)) in right
    ]
