from pyspark.sql import SparkSession

from demands import Row, demand_frame, random_rows, sorted_rows
from ramify.pipeline.passes.table_files import PUBLISHED, TRAFFIC
from ramify.pipeline.tables.traffic import published, traffic


def oracle(rows: list[Row], hosts: list[int]) -> list[tuple[int, ...]]:
    sums: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        at_home = [row.publisher] if any(hosts[k] == row.publisher for k in row.classes) else []
        for destination in (*row.destinations, *at_home):
            both = sums.setdefault((row.publisher, destination), [0, 0])
            both[0] += row.count
            both[1] += row.bytes
    return sorted((*pair, *both) for pair, both in sums.items())


def test_the_traffic_matrix_equals_a_plain_loop_in_any_number_of_partitions(spark: SparkSession) -> None:
    rows, hosts = random_rows(21, 90, 7), [0, 1, 2, 3, 4, 0, 1]
    for partitions in (1, 2, 7):
        found = traffic(demand_frame(spark, rows, partitions), hosts).toArrow().cast(TRAFFIC)
        assert sorted_rows(found) == oracle(rows, hosts)
    without = traffic(demand_frame(spark, rows)).toArrow().cast(TRAFFIC)
    assert sorted_rows(without) == [row for row in oracle(rows, hosts) if row[0] != row[1]]


def test_what_a_broker_publishes_leaves_stays_or_is_for_nobody(spark: SparkSession) -> None:
    rows = [
        Row((0,), 3, 30, publisher=1, destinations=(2, 4)),
        Row((1,), 5, 50, publisher=1),
        Row((), 7, 70, publisher=1),
        Row((), 1, 10, publisher=0),
    ]
    found = published(demand_frame(spark, rows)).toArrow().cast(PUBLISHED)
    assert sorted_rows(found) == [
        (0, 1, 10, 0, 0, 0, 0, 1, 10),
        (1, 15, 150, 3, 30, 5, 50, 7, 70),
    ]


def test_no_events_make_no_traffic(spark: SparkSession) -> None:
    demand = demand_frame(spark, [])
    assert traffic(demand, [0, 1]).toArrow().num_rows == 0
    assert published(demand).toArrow().num_rows == 0
