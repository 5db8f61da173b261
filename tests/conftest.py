"""Session fixtures: a real broker and a real engine."""

import signal

# A shell's background job has SIGINT ignored, and so would every process that a test starts and then interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["kvtrail.tests.fixtures.kafka", "kvtrail.tests.fixtures.engine"]
