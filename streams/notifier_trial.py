"""A made-up notification to one target: is the address right, is the token, does it arrive?"""

import time

from ..schemas.config import Config
from ..schemas.dimensions import Severity
from ..schemas.errors import ConfigError
from ..schemas.notifications import Notification, notification_id
from .notifier_targets import Answer, new_session, targets_of

CAUSE = "TEST"


async def try_target(config: Config, name: str) -> Answer:
    """What the target answers to something that is over as soon as it is told. Raises `ConfigError` without a URL."""
    target = next((one for one in targets_of(config.notify) if one.name == name), None)
    if target is None:
        raise ConfigError("has no URL.", field=name, remedy="Set its url.")
    now_us = time.time_ns() // 1000
    notification = Notification(
        id=notification_id(config.deployment, CAUSE, 1, now_us), kind="resolved", deployment=config.deployment,
        cause_id=CAUSE, episode=1, revision=1, at_us=now_us, since_us=now_us, cause=CAUSE, severity=Severity.INFO,
        title="a test of kvtrail's notifier", reason="somebody ran kvtrail notify test",
    )  # fmt: skip
    async with new_session() as session:
        return await target.send(session, notification)
