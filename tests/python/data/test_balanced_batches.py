# SPDX-License-Identifier: Apache-2.0
"""ostinato.data.BalancedBatches: the same samples a step, dealt alike on every replica, no slower than dealt
in order, and a true bound."""

import itertools
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ostinato.data
from ostinato.data import BalancedBatches

# N, samples, R, stages, padded.
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans())


def made(shape, sizes, **more):
    micro_batches, each, replicas, stages, padded = shape
    given = {
        "micro_batches": micro_batches,
        "micro_batch_size": each,
        "replicas": replicas,
        "stages": stages,
        "padded": padded,
    }
    return BalancedBatches(sizes, **(given | more))


def data_set(draw, shape, steps=2):
    a_step = shape[0] * shape[1] * shape[2]
    return draw.draw(st.lists(st.integers(1, 50), min_size=steps * a_step, max_size=(steps + 1) * a_step - 1))


@settings(max_examples=60)
@given(st.data(), SHAPES)
def test_every_step_trains_the_samples_that_it_would_without(draw, shape):
    sizes = data_set(draw, shape)
    order = draw.draw(st.permutations(range(len(sizes))))
    of_replicas = [list(made(shape, sizes, replica=r, sampler=order)) for r in range(shape[2])]
    a_step = shape[0] * shape[1] * shape[2]
    for step in range(2):
        taken = [b for mine in of_replicas for b in mine[step * shape[0] : (step + 1) * shape[0]]]
        assert all(len(batch) == shape[1] for batch in taken)
        assert Counter(itertools.chain(*taken)) == Counter(order[step * a_step : (step + 1) * a_step])
    assert {len(mine) for mine in of_replicas} == {len(made(shape, sizes, sampler=order))}


@settings(max_examples=60)
@given(st.data(), SHAPES, st.integers(0, 100), st.integers(0, 3))
def test_a_loaded_state_goes_on_where_it_stood(draw, shape, stop, epoch):
    sizes = data_set(draw, shape)
    whole, begun, resumed = (made(shape, sizes, seed=3) for _ in range(3))
    for one in (whole, begun):
        one.set_epoch(epoch)
    everything = list(whole)
    first = list(itertools.islice(begun, stop % len(everything)))
    resumed.load_state_dict(begun.state_dict())
    assert first + list(resumed) == everything
    assert list(resumed) == list(whole)  # the next epoch, too


def test_a_look_at_the_first_batch_takes_nothing():
    """Nor does an epoch that was left early, or a loop that goes on beside a newer one."""
    lengths = [3, 1, 4, 1, 5, 9, 2, 6]
    one, whole = (BalancedBatches(lengths, micro_batches=2, seed=1) for _ in range(2))
    first, second = list(whole), list(whole)
    older = iter(one)
    assert next(older) == next(iter(one)) == first[0] and len(first) == len(one)
    assert one.state_dict()["begun"] == 1
    assert list(older) == first[1:]
    assert one.state_dict() | {"epoch": 0, "steps": 0, "begun": 1} == one.state_dict()
    one.load_state_dict(one.state_dict() | {"steps": 1, "begun": 1})
    next(iter(one))
    assert list(one) == first[3:]
    assert list(one) == second


@settings(max_examples=100)
@given(st.data(), SHAPES)
def test_no_way_to_deal_these_micro_batches_is_predicted_below_the_bound(draw, shape):
    """Any other dealing of the same micro-batches is at or above the bound; ours is between."""
    sizes = data_set(draw, shape, steps=1)
    one = made(shape, sizes)
    deal = one.deal(range(one.samples_a_step))
    batches = [batch for mine in deal.batches for batch in mine]
    other = draw.draw(st.permutations(batches))
    costs = [ostinato.data._Cost(one.times([sizes[s] for s in batch])) for batch in other]
    n = shape[0]
    slowest = max(ostinato.data._predicted(costs[r * n : (r + 1) * n]) for r in range(shape[2]))
    assert deal.bound <= slowest * (1 + 1e-9)
    assert deal.bound <= deal.slowest


def test_rounding_puts_no_bound_above_the_prediction():
    import random

    for seed in range(50):
        draw = random.Random(seed)
        deal = BalancedBatches([draw.random() for _ in range(4)], micro_batches=4, stages=3).deal(range(4))
        assert deal.bound <= deal.slowest


def test_small_deals_are_near_the_best_of_all():
    """Two replicas of three micro-batches each: all ways to deal them."""
    import random

    draw = random.Random(4)
    ratios = []
    for _ in range(50):
        sizes = [draw.randint(1, 40) for _ in range(6)]
        one = BalancedBatches(sizes, micro_batches=3, replicas=2, stages=2)
        costs = [ostinato.data._Cost(one.times([size])) for size in sizes]
        best = min(
            max(
                ostinato.data._predicted([costs[k] for k in mine])
                for mine in (ours, set(range(6)) - set(ours))
            )
            for ours in itertools.combinations(range(6), 3)
        )
        ratios.append(one.deal(range(6)).slowest / best)
    assert sum(ratios) / len(ratios) < 1.02
    assert min(ratios) >= 1


def test_a_state_of_other_steps_is_refused():
    state = BalancedBatches(range(8), micro_batches=2).state_dict()
    with pytest.raises(ValueError, match="samples_a_step 2, but this sampler has 4"):
        BalancedBatches(range(8), micro_batches=4).load_state_dict(state)
    with pytest.raises(ValueError, match="samples 8, but this sampler has 9: its steps would differ"):
        BalancedBatches(range(9), micro_batches=2).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has no begun, steps: another version"):
        BalancedBatches(range(8), micro_batches=2).load_state_dict(
            {key: value for key, value in state.items() if key not in ("begun", "steps")} | {"taken": 0}
        )


@settings(max_examples=60)
@given(st.data(), st.sampled_from([(1, 4, 2), (2, 2, 2), (4, 1, 2), (8, 1, 1), (1, 1, 8), (2, 4, 1)]))
def test_a_state_between_steps_resumes_on_other_replicas(draw, shape):
    """Each sample of the epoch is trained once, whichever of the two trains it."""
    sizes = draw.draw(st.lists(st.integers(1, 50), min_size=24, max_size=31))
    first, steps = (4, 1, 2, 1, False), draw.draw(st.integers(0, 3))
    before = [made(first, sizes, replica=r) for r in range(2)]
    trained = [batch for one in before for batch in itertools.islice(one, steps * 4)]
    state = before[0].state_dict()
    after = [made((*shape, 1, False), sizes, replica=r) for r in range(shape[2])]
    for one in after:
        one.load_state_dict(state)
    everything = [batch for r in range(2) for batch in made(first, sizes, replica=r)]
    trained += [batch for one in after for batch in one]
    assert sorted(itertools.chain(*trained)) == sorted(itertools.chain(*everything))


@pytest.mark.parametrize("more", [{"micro_batches": 2, "replicas": 2}, {"padded": True}, {"stages": 2}])
def test_a_state_within_a_step_resumes_only_where_it_is_dealt_alike(more):
    one = BalancedBatches(range(8), micro_batches=4)
    next(iter(one))
    with pytest.raises(ValueError, match="the rest of the step that it has begun would differ"):
        BalancedBatches(range(8), **{"micro_batches": 4} | more).load_state_dict(one.state_dict())


def test_steps_are_of_the_epoch_that_was_fetched_to_its_end():
    """As workers do, while its last steps are trained."""
    one, whole = (BalancedBatches(range(1, 17), micro_batches=2, seed=1) for _ in range(2))
    first, second = list(whole), list(whole)
    resumed = BalancedBatches(range(1, 17), micro_batches=2, seed=1)
    assert list(one) == first
    resumed.load_state_dict(one.state_dict(steps=7))
    assert list(resumed) == first[14:] and list(resumed) == second
    assert one.state_dict()["epoch"] == 1  # all was fetched
    assert next(iter(one)) == second[0]
    resumed.load_state_dict(one.state_dict(steps=3))  # of the epoch that has begun meanwhile
    assert list(resumed) == second[6:]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"micro_batches": 0}, "micro_batches is 0"), ({"replica": 2, "replicas": 2}, "replica is 2")],
)
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        BalancedBatches([1, 2], **({"micro_batches": 1} | wrong))


@pytest.mark.parametrize("sampler", [None, [2, 0, 1]])
def test_samples_that_fill_no_step_are_refused(sampler):
    batches = BalancedBatches([1, 2, 3], micro_batches=2, replicas=2, sampler=sampler)
    with pytest.raises(ValueError, match="3 samples fill no step, which takes 4"):
        list(batches)


def test_a_data_loader_takes_it():
    data = pytest.importorskip("torch.utils.data")
    lengths = [3, 1, 4, 1, 5, 9, 2, 6]
    batches = BalancedBatches(lengths, micro_batches=2, micro_batch_size=2, replicas=2, seed=1)
    loader = data.DataLoader(range(8), batch_sampler=batches, collate_fn=list)
    assert list(loader) == list(
        BalancedBatches(lengths, micro_batches=2, micro_batch_size=2, replicas=2, seed=1)
    )
    assert len(loader) == 2


def test_it_needs_neither_torch_nor_the_compiled_half():
    code = "import sys; import ostinato.data; assert not {'torch', 'ostinato._search'} & set(sys.modules), sys.modules.keys()"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={**__import__("os").environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf")])
def test_a_size_that_is_none_is_named(size):
    with pytest.raises(ValueError, match=f"the size of sample 2 is {size}; it must be 0 or more"):
        list(BalancedBatches([1, 2, size, 4], micro_batches=2))


@pytest.mark.parametrize("steps", [-1, 3])
def test_steps_that_an_epoch_does_not_have_are_refused(steps):
    batches = made((2, 1, 1, 1, False), [1] * 4)
    with pytest.raises(ValueError, match=f"{steps} steps were trained, but an epoch has 2"):
        batches.state_dict(steps)
    with pytest.raises(ValueError, match=f"{steps} steps were trained, but an epoch has 2"):
        batches.load_state_dict(batches.state_dict() | {"steps": steps})
