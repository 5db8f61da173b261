"""The cacheable front of a prompt: epoch marker, then the template as rendered for one tenant.

The marker stands at position zero, so that every token after it is computed anew when the epoch is bumped: no entry
of an earlier epoch can be mistaken for the new prefix by anybody who looks at tokens.
"""

from dataclasses import dataclass

from ..producers.epoch import EpochMarker
from ..schemas.digests import NONE
from ..schemas.identity import PrefixKey
from . import kv
from .model import LanguageModel


@dataclass(frozen=True, slots=True)
class Prefix:
    """What comes before the user's question. `rendered`: the system prompt with this tenant's values filled in;
    `epoch`: empty where the fleet has never needed one."""

    tenant_id: str
    template_id: str
    rendered: str
    epoch: str = ""

    @property
    def text(self) -> str:
        """The prefix as the model sees it. Raises `InvalidField` for an epoch that no marker can carry."""
        marker = EpochMarker(self.epoch).prefix() if self.epoch else ""
        return f"{marker}<|im_start|>system\n{self.rendered}<|im_end|>\n"

    def key(self, model: LanguageModel, token_ids: list[int]) -> PrefixKey:
        """The prefix's identity, every digest computed from content: from this text, these tokens, these weights."""
        return model.deployment.prefix_key(
            tenant_id=self.tenant_id,
            template_id=self.template_id,
            rendered_template=self.rendered,
            token_ids=token_ids,
            corpus=(),
            epoch=self.epoch,
            adapter_digest=NONE,
            kv_layout=kv.LAYOUT,
            kv_geometry=model.kv_geometry,
        )


def turn(question: str) -> str:
    """The user's question and the opening of the answer, as this model was trained to see them."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
