"""Batches of labelled examples: order, rows, packing."""
import itertools

import numpy as np
import pytest

from plm_jax.finetuning.setup import dev_set_names
from plm_jax.tasks.batches import (
  BatchShape,
  FeatureBatches,
  gather_outputs,
  round_up_rows,
  shuffle_units,
)
from plm_jax.tasks.features import Features, Ragged


def features(sizes, group=1):
  """Rows of 100 n + 0, 1, 2, ... with the label n."""
  rows = [100 * number + np.arange(size) for number, size in enumerate(sizes, 1)]
  numbers = np.arange(1, len(sizes) + 1, dtype=np.int32)
  return Features(Ragged.concat(rows),
                  {'types': Ragged.concat([np.full(size, 7) for size in sizes])},
                  {'stand': np.ones(len(sizes), np.int32), 'label': numbers}, numbers - 1,
                  group=group)


def test_a_batch_is_rows_as_long_as_the_longest_needs():
  batch, placed = FeatureBatches(features([3, 17, 2]),
                                 BatchShape(4, 32, pad=9)).lay_out(np.array([2, 0]))
  assert batch['tokens'].shape == (4, 16)
  np.testing.assert_array_equal(batch['tokens'][:2, :4], [[300, 301, 9, 9], [100, 101, 102, 9]])
  np.testing.assert_array_equal(batch['segments'][:, :4],
                                [[1, 1, 0, 0], [1, 1, 1, 0], [0] * 4, [0] * 4])
  np.testing.assert_array_equal(batch['types'][0, :3], [7, 7, 0])
  np.testing.assert_array_equal(batch['label'], [[3], [1], [0], [0]])
  np.testing.assert_array_equal(batch['weight'], [[1], [1], [0], [0]])
  np.testing.assert_array_equal(batch['extract'], [[1], [1], [0], [0]])
  assert placed.number.tolist() == [2, 0]


def test_packed_rows_hold_several_examples():
  batch, placed = FeatureBatches(features([3, 12, 4, 9]),
                                 BatchShape(4, 16, pack=True)).lay_out(np.arange(4))
  assert batch['tokens'].shape == (2, 16)
  np.testing.assert_array_equal(batch['tokens'][0], [*range(200, 212), *range(300, 304)])
  np.testing.assert_array_equal(batch['segments'][1], [1] * 9 + [2] * 3 + [0] * 4)
  np.testing.assert_array_equal(batch['label'], [[2, 3], [4, 1]])
  np.testing.assert_array_equal(batch['extract'], [[1, 13], [1, 10]])
  outputs = np.arange(4).reshape(2, 2)
  assert gather_outputs(outputs, placed, None, 'slot') == [3, 0, 1, 2]  # type: ignore
  tokens = gather_outputs(batch['tokens'], placed, np.array([3, 12, 4, 9]), 'token')
  assert [row.tolist()[0] for row in tokens] == [100, 200, 300, 400]


def test_groups_stand_together():
  batch, _ = FeatureBatches(features([3, 2, 4, 1], group=2),
                            BatchShape(2, 32)).lay_out(np.array([1, 0]))
  assert batch['tokens'].shape == (2, 2, 16)
  np.testing.assert_array_equal(batch['tokens'][:, :, 0], [[300, 400], [100, 200]])
  np.testing.assert_array_equal(batch['extract'][:, :, 0], [[1, 1], [1, 1]])
  np.testing.assert_array_equal(batch['label'], [[3], [1]])


@pytest.mark.parametrize('sizes', [None, np.arange(103) % 10])
def test_an_epoch_asks_everything_once_in_an_order_of_its_own(sizes):
  first, again, other = (shuffle_units(103, 8, 5, epoch, sizes) for epoch in (0, 0, 1))
  assert first.shape == (13, 8)
  assert sorted(first[first >= 0]) == list(range(103))
  assert (first[-1] >= 0).sum() == 103 % 8
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()


def test_neighbours_by_length_are_alike():
  sizes = np.random.default_rng(0).integers(1, 50, 64)
  spread = [np.ptp(sizes[batch]) for batch in shuffle_units(64, 8, 0, 0, sizes)]
  assert np.mean(spread) < 10 < np.mean([np.ptp(sizes[batch])
                                         for batch in shuffle_units(64, 8, 0, 0)])


def test_rows_come_in_few_numbers():
  numbers = 0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 17
  assert [round_up_rows(number) for number in numbers] == [1, 1, 2, 3, 4, 6, 6, 8, 12, 16, 24]


def test_steps_go_on_from_epoch_to_epoch():
  batches = FeatureBatches(features([2] * 10), BatchShape(4, 16), seed=1)
  assert batches.steps == 3
  seen = [batches.batch(step)[1].number.tolist() for step in range(6)]
  assert sorted(itertools.chain(*seen[:3])) == sorted(itertools.chain(*seen[3:])) == list(range(10))
  assert len(seen[2]) == 2
  assert seen[:3] != seen[3:]


def test_development_sets_have_different_names():
  assert dev_set_names(['a/dev.tsv', 'b/dev.tsv', 'c/dev.tsv',
                        'c/other.tsv.gz']) == ['', 'dev_1', 'dev_2', 'other']
