"""Homes and partitions: what every producer in every language must agree on."""

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st
from kvtrail.schemas.homes import murmur2, node_home, partition_of, shared_home, shared_homes

# From Kafka's own UtilsTest.testMurmur2, as signed 32-bit integers.
KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "signed"), KAFKA.items())
def test_murmur2_is_kafkas(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_murmur2_is_the_clients(data: bytes) -> None:
    assert murmur2(data) == aiokafka_murmur2(data) & 0xFFFFFFFF


def test_homes() -> None:
    assert node_home("node-a") == "n:node-a"
    assert shared_homes("s3", 3) == ("s:s3:0", "s:s3:1", "s:s3:2")
    # First byte of SHA-256, modulo slots: 0xba for "abc".
    assert shared_home("s3", "abc", 8) == f"s:s3:{0xBA % 8}"


@given(st.text(max_size=20), st.integers(1, 256))
def test_a_key_has_one_of_its_stores_homes(key: str, slots: int) -> None:
    assert shared_home("s3", key, slots) in shared_homes("s3", slots)


@given(st.text(max_size=20), st.integers(1, 64))
def test_partitions_are_in_range(home: str, partitions: int) -> None:
    assert 0 <= partition_of(home, partitions) < partitions


def test_partitions_are_as_kafkas_default_partitioner_chooses() -> None:
    assert partition_of("21", 10) == (-973932308 & 0x7FFFFFFF) % 10
