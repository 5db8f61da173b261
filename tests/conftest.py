"""Session fixtures: a real broker and a real engine."""

pytest_plugins = ["kvtrail.tests.fixtures.kafka", "kvtrail.tests.fixtures.engine"]
