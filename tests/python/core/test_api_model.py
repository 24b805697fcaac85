# SPDX-License-Identifier: Apache-2.0
"""Any sequence of calls of the Python API: what it returns holds together, what it raises is documented, and
it never crashes.

hypothesis draws the calls, keeps those that fail in .hypothesis, runs them again first, and shrinks them to a
short program: OSTINATO_SOAK_CALLS=1000 OSTINATO_SOAK_SEED=7 python -m pytest
tests/python/core/test_api_model.py
"""

import itertools
import os
import tempfile
from pathlib import Path

import ostinato
from hypothesis import HealthCheck, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from support.profiles import write_profile

RUNS = int(os.environ.get("OSTINATO_SOAK_CALLS", 25))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))
STEPS = 30

SHAPES = ["v", "x", "m", "nn", "k", "looped", "wave", "wheel"]  # the last is none
METHODS = ["auto", "1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "chimera", "dualpipe-v", "nonesuch"]
NUMBERS = st.one_of(st.integers(1, 6), st.sampled_from([-1, 0, 2**31 - 1, 2**31, 2**63]))
COUNTS = st.integers(-1, 6)  # of what is searched for
TIMES = st.one_of(st.integers(0, 9), st.sampled_from(["1.5us", "3ns", "2 hours", "", -1, 2**62]))
AMOUNTS = st.one_of(st.integers(0, 9), st.sampled_from(["1KiB", "unlimited", "3 pounds", -1, 2**62]))
PER_DEVICE = st.one_of(TIMES, st.lists(st.integers(0, 9), min_size=1, max_size=4))
DEVICES_TOML = 'format = "ostinato-devices/1"\nmemory_unit = "MiB"\n[[kinds]]\nname = "a"\nmemory = {memory}\nspeed = {speed}\n[[nodes]]\nname = "n"\nkind = "a"\ndevices = {n}\n'


class Calls(RuleBasedStateMachine):
    placements = Bundle("placements")
    plans = Bundle("plans")
    profiles = Bundle("profiles")
    devices = Bundle("devices")

    def __init__(self):
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._names = itertools.count()

    def teardown(self):
        self._folder.cleanup()

    def file(self) -> Path:
        return Path(self._folder.name) / str(next(self._names))

    @staticmethod
    def made(call, *args, **keywords):
        """What a call returns; nothing where it raises what is documented."""
        try:
            return call(*args, **keywords)
        except ostinato.Error as error:
            assert str(error).strip(), "an error says nothing"
            note(f"{type(error).__name__}: {error}")
            return multiple()

    @rule(target=placements, shape=st.sampled_from(SHAPES), devices=COUNTS, chunks=COUNTS, layers=st.integers(-1, 12), forward=PER_DEVICE,
          backward=PER_DEVICE, weight=PER_DEVICE, memory=AMOUNTS, capacity=AMOUNTS, latency=TIMES, inference=st.booleans())  # fmt: skip
    def a_placement(self, shape, **options):
        return self.made(ostinato.placement, shape, **options)

    @rule(
        target=profiles, times=st.lists(st.integers(1, 500), min_size=1, max_size=9), shardable=st.booleans()
    )
    def a_profile(self, times, shardable):
        return ostinato.Profile.from_file(
            write_profile(self.file(), times, shardable=(len(times) - 1,) if shardable else ())
        )

    @rule(target=devices, n=NUMBERS.filter(lambda n: n < 100 or n > 2**40), memory=AMOUNTS)
    def some_devices(self, n, memory):
        return self.made(ostinato.Devices, n, memory)

    @rule(target=devices, n=COUNTS, memory=st.integers(-1, 3), speed=st.sampled_from([1, 0.5, 0, "inf"]))
    def devices_of_a_file(self, n, memory, speed):
        return self.made(ostinato.Devices.from_text, DEVICES_TOML.format(n=n, memory=memory, speed=speed))

    @rule(target=placements, profile=profiles, on=st.one_of(devices, COUNTS), micro_batches=COUNTS, chunks=COUNTS,
          layout=st.sampled_from(["looped", "wave", "heap"]), memory=AMOUNTS, split_backward=st.booleans(), shard=st.sampled_from(["", "last"]))  # fmt: skip
    def partition(self, profile, on, memory, **options):
        return self.made(ostinato.partition, profile, devices=on, device_memory=memory, **options)

    @rule(target=plans, placement=placements, micro_batches=COUNTS, method=st.sampled_from(METHODS),
          objective=st.sampled_from(["makespan", "span", "latency", "beauty"]), threads=st.integers(-1, 2))  # fmt: skip
    def search(self, placement, **options):
        return self.made(ostinato.search, placement, time_limit=0.1, **options)

    @rule(
        target=plans,
        placement=placements,
        sizes=st.lists(st.integers(-1, 50), max_size=6),
        size=st.integers(-1, 20),
    )
    def search_sizes(self, placement, sizes, size):
        return self.made(ostinato.search_sizes, placement, sizes, size=size, time_limit=0.1, effort=10)

    @rule(target=plans, placement=placements, micro_batches=COUNTS, points=st.integers(-1, 3))
    def pareto(self, placement, micro_batches, points):
        found = self.made(
            ostinato.pareto, placement, micro_batches=micro_batches, points=points, time_limit=0.1, threads=1
        )
        return multiple(*found) if isinstance(found, list) else found

    @rule(target=plans, profile=profiles, on=st.one_of(devices, COUNTS), micro_batches=COUNTS, memory=AMOUNTS, max_chunks=st.integers(-1, 3),
          without=st.lists(st.sampled_from(["chunks", "split", "moves", "gravity"]), max_size=2), replicas=st.sampled_from([1, 2, "auto", 0]), slices=st.sampled_from(["", 1, 2, "auto"]))  # fmt: skip
    def plan(self, profile, on, memory, **options):
        return self.made(
            ostinato.plan, profile, devices=on, device_memory=memory, time_limit=0.1, threads=1, **options
        )

    @rule(plan=plans)
    def verify(self, plan):
        check = ostinato.verify(plan)
        assert check and check.passed, check.failures

    @rule(
        plan=plans,
        jitter=st.sampled_from([0, 0.3, -1, 2]),
        transfer_factor=st.sampled_from([1, 0, 2.5, -1]),
        runs=st.integers(-1, 5),
    )
    def simulate(self, plan, **options):
        found = self.made(ostinato.simulate, plan, **options)
        if isinstance(found, ostinato.Simulation):
            assert len(found.makespans) >= 1 and list(found.makespans) == sorted(found.makespans)
            if options["jitter"] == 0 and options["transfer_factor"] == 1:
                assert found.at(100) <= plan.makespan

    @rule(plan=plans, transfers=st.booleans())
    def lower(self, plan, transfers):
        rows = self.made(ostinato.lower, plan, transfers=transfers)
        if isinstance(rows, list):
            assert len(rows) == len(plan.placement.devices)

    @rule(plan=plans)
    def look_at(self, plan):
        assert plan.lower_bound <= plan.makespan or plan.objective != "makespan"
        assert (
            str(plan).strip()
            and repr(plan)
            and plan.html()
            and plan.to_dict()["placement"]["sha256"] == plan.placement.sha256
        )
        assert len(plan.peak_memory) == len(plan.placement.devices) and isinstance(
            ostinato.explain(plan), list
        )
        assert max((step.end for step in plan.schedule), default=0) == plan.makespan

    @rule(target=plans, plan=consumes(plans))
    def save_and_load_a_plan(self, plan):
        path, beside = self.file(), self.file()
        plan.save(path), plan.placement.save(beside)
        again = ostinato.Plan.from_file(path, beside)
        assert again == plan and again.text == plan.text and again.schedule == plan.schedule
        return again

    @rule(target=placements, placement=consumes(placements))
    def save_and_load_a_placement(self, placement):
        placement.save(path := self.file())
        again = ostinato.Placement.from_file(path)
        assert (
            again == placement == ostinato.Placement.from_text(placement.text)
            and again.sha256 == placement.sha256
        )
        assert hash(again) == hash(placement) and again.to_dict() == placement.to_dict()
        return again

    @rule(target=profiles, profile=consumes(profiles))
    def save_and_load_a_profile(self, profile):
        profile.save(path := self.file())
        again = ostinato.Profile.from_file(path)
        assert again == profile and again.layers == profile.layers and len(again.noise) >= 0
        return again

    @rule(made=devices)
    def save_and_load_devices(self, made):
        path = self.file()
        self.made(made.save, path)  # those that are alike are no file
        assert not path.exists() or len(ostinato.Devices.from_file(path)) == len(made)

    @rule(made=st.one_of(placements, profiles), at=st.floats(0, 1), other=st.characters(codec="utf-8"))
    def a_changed_text(self, made, at, other):
        """Of a file: it is refused, or it is one."""
        place = int(at * (len(made.text) - 1))
        self.made(type(made).from_text, made.text[:place] + other + made.text[place + 1 :])

    @rule(plan=plans, placement=placements)
    def a_plan_of_another_placement(self, plan, placement):
        path, beside = self.file(), self.file()
        plan.save(path), placement.save(beside)
        loaded = self.made(ostinato.Plan.from_file, path, beside)
        assert not isinstance(loaded, ostinato.Plan) or placement == plan.placement

    @invariant()
    def nothing_is_left_beside_the_files(self):
        assert all(path.name.isdecimal() for path in Path(self._folder.name).iterdir())


def test_any_sequence_of_calls():
    quick = settings(
        max_examples=RUNS,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(seed(SEED)(Calls), settings=quick)
