"""`python -m kvtrail.cli.local`: fetch what the local broker needs, saying so: Java, Maven, Kafka's jars."""

import sys

from ...schemas.errors import StackError
from ..screen import say, step
from .jars import kafka_jars
from .java import Tools

tools = Tools(say=say)
try:
    tools.java()
    with step("Kafka's jars"):
        kafka_jars(tools)
except StackError as error:
    sys.exit(f"kvtrail: {error}")
