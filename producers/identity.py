"""For whoever assembles prompts: a complete `PrefixKey` from the content itself.

Only the assembler knows the rendered template, the tools and the tenant, so it is the one that can say what a prefix
is. Digests are computed here, so that no name can stand in a digest's place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..schemas.digests import digest_bytes, digest_corpus, digest_template, digest_token_ids, digest_tools
from ..schemas.identity import PrefixKey, identity_error


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a process knows once, at its start, about the model it serves: an alias is resolved to its digest here.

    `weights_digest` is of the weights' content (`schemas.digests.digest_weights`). `secret` with its `secret_id`
    keys the digests of guessable text, templates and isolation domains; all producers of a fleet share it.
    """

    model_id: str
    weights_digest: str
    kv_dtype: str
    tokenizer_id: str
    secret: bytes | None = None
    secret_id: str = ""

    def __repr__(self) -> str:
        return f"Deployment(model_id={self.model_id!r}, secret={'set' if self.secret else 'none'})"

    def prefix_key(
        self,
        *,
        tenant_id: str,
        template_id: str,
        rendered_template: str,
        token_ids: Iterable[int],
        tools: Sequence[Mapping[str, Any]] = (),
        corpus: Iterable[tuple[str, str]] | None = None,
        epoch: str | None = None,
        principal: str | None = None,
        isolation: str | None = None,
        **dimensions: str,
    ) -> PrefixKey:
        """The key of one prefix.

        `rendered_template` is the text as rendered for this tenant, before the user's turn; `token_ids` are those of
        the whole prefix, marker included. `corpus` is (document id, revision) in prompt order; None: unknown, empty:
        known to have none. `isolation` is the salt or namespace whose digest becomes the isolation domain.
        `dimensions` are any others by name (`adapter_digest`, ...). Raises `EmptyTenant`, `NameInDigestPlace`,
        `InvalidField`, naming the dimension.
        """
        values: dict[str, Any] = {
            **dimensions,
            "model_id": self.model_id,
            "weights_digest": self.weights_digest,
            "kv_dtype": self.kv_dtype,
            "tokenizer_id": self.tokenizer_id,
            "tenant_id": tenant_id,
            "template_id": template_id,
            "template_digest": digest_template(rendered_template, self.secret, self.secret_id),
            "tool_schema_digest": digest_tools(tools),
            "token_ids_digest": digest_token_ids(token_ids),
            "corpus_digest": None if corpus is None else digest_corpus(corpus),
            "epoch": epoch,
            "principal": principal,
            "isolation_domain": self._isolation(isolation),
        }
        try:
            return PrefixKey(**values)
        except ValidationError as error:
            raise identity_error(error) from None

    def _isolation(self, salt: str | None) -> str | None:
        if not salt:
            return salt
        return digest_bytes(salt.encode(), self.secret, self.secret_id)
