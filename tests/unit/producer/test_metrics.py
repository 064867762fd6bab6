"""Measures over windows agree with kafka-python's, given the same values at the same times."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from kafka.metrics import MetricConfig
from kafka.metrics.stats import Avg, Count, Max, Rate

import segstore
from segstore.client.producer import Producer
from segstore.client.producer.buffer_pool import Owner
from segstore.coordinator.metrics import Sensor


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_agrees_with_kafka_python(rng: random.Random, samples: int) -> None:
    """Measured once at the end: there a look empties windows that are over, and so moves where they begin."""
    config = MetricConfig(samples=samples, time_window_ms=1_000)
    for _ in range(200):
        clock = Clock()
        sensor = Sensor(samples, 1_000, clock)
        theirs = {"avg": Avg(), "max": Max(), "rate": Rate(), "count_rate": Rate(sampled_stat=Count())}
        values = [rng.randint(0, 1_000) for _ in range(rng.randint(1, 40))]
        for value in values:
            clock.now += rng.choice([0, 1, 10, 100, 700, 1_500])
            sensor.record(value)
            for stat in theirs.values():
                stat.record(config, value, clock.now)
        clock.now += rng.choice([1, 500, 999])
        if math.isnan(sensor.avg):
            continue  # of nothing recent kafka-python says 0, -inf, or divides by zero; Kafka says NaN
        for name, stat in theirs.items():
            assert getattr(sensor, name) == pytest.approx(stat.measure(config, clock.now)), name
        assert (sensor.total, sensor.count) == (sum(values), len(values))


def test_rates_are_per_second_and_the_first_moments_show_no_burst() -> None:
    clock = Clock()
    sensor = Sensor(2, 30_000, clock)
    sensor.record(300)
    clock.now += 1
    # One value in a ms is no 300,000 a second: a window that is not over counts with the whole one before it.
    assert sensor.rate == pytest.approx(300 / 30.001)
    assert sensor.count_rate == pytest.approx(1 / 30.001)
    clock.now += 29_999
    sensor.record(300)
    clock.now += 15_000
    assert sensor.rate == pytest.approx(600 / 45)


def test_what_is_old_is_forgotten_but_for_the_totals() -> None:
    clock = Clock()
    sensor = Sensor(2, 1_000, clock)
    sensor.record(5)
    clock.now += 2_000
    assert math.isnan(sensor.avg)
    assert math.isnan(sensor.max)
    assert sensor.rate == sensor.count_rate == 0
    assert (sensor.total, sensor.count) == (5, 1)


# --- a producer's ---------------------------------------------------------------------------------


def test_what_is_told_is_counted_and_its_memory_free(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows what became of a record finds it in the metrics."""
    counted: list[float] = []
    known_before: list[bool] = []
    with segstore.open(store_dir) as store, Producer(store, linger_ms=60_000) as producer:
        store.create_topic("t")
        pool = producer._accumulator.pool
        give_back = pool.give_back

        def freed(owner: Owner) -> None:
            known_before.append(future.is_done)
            give_back(owner)

        monkeypatch.setattr(pool, "give_back", freed)
        future = producer.send("t", b"x")
        future.add_callback(
            lambda _: counted.append(producer.metrics()["producer-metrics"]["record-send-total"])
        )
        producer.flush()
    assert (counted, known_before) == ([1], [False])
