"""What Faust shows the broker."""

from faust.auth import Credentials, OAuthCredentials, SASLCredentials, SSLCredentials

from ..producers.kafka_client import connection
from ..schemas.config import KafkaConfig


def credentials(kafka: KafkaConfig) -> Credentials | None:
    """What Faust shows the broker: the same as every other client."""
    found = connection(kafka)
    context = found.get("ssl_context")
    if "sasl_oauth_token_provider" in found:
        return OAuthCredentials(oauth_cb=found["sasl_oauth_token_provider"], ssl_context=context)
    if "sasl_mechanism" in found:
        return SASLCredentials(
            username=found["sasl_plain_username"],
            password=found["sasl_plain_password"],
            mechanism=found["sasl_mechanism"],
            ssl_context=context,
        )
    return None if context is None else SSLCredentials(context=context)
