import jax
import pytest

from plm_jax.data import bucketing


def test_lengths_are_few_and_hold_the_text():
  assert [bucketing.bucket_length(n, 0)
          for n in (1, 16, 17, 25, 33, 49, 65, 97)] == [16, 16, 24, 32, 48, 64, 96, 128]
  four = [bucketing.bucket_length(n, 0, steps=4) for n in range(1, 129)]
  assert sorted(set(four)) == [16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]
  assert all(padded >= n for n, padded in enumerate(four, 1))
  assert bucketing.bucket_length(40, 45) == 45
  short = [bucketing.bucket_length(n, 0, shortest=8) for n in (1, 8, 9, 13, 17, 33)]
  assert short == [8, 8, 12, 16, 24, 48]


def test_round_up_has_steps_per_doubling():
  assert [bucketing.round_up(n, 1) for n in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 16]
  assert [bucketing.round_up(n, 2) for n in range(1, 10)] == [1, 2, 3, 4, 6, 6, 8, 8, 12]


@pytest.mark.parametrize(('steps', 'rows'), [(2, 24), (1, 32)])
def test_batches_of_one_length_are_balanced(steps, rows):
  assert bucketing.bucket_rows(40, 32, steps) == rows  # two batches: 20 rows each, padded
  assert bucketing.bucket_rows(1, 32, steps) == 1 and bucketing.bucket_rows(3200, 32, steps) == 32
  for number in range(1, 200):
    size = bucketing.bucket_rows(number, 32, steps)
    assert size <= 32 and -(-number // size) == -(-number // 32), number


@pytest.mark.parametrize('devices', [1, 4])
@pytest.mark.parametrize('backend', ['cpu', 'tpu'])
def test_every_row_is_in_one_batch_that_holds_it(monkeypatch, backend, devices):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  sizes = [number * 7 % 90 + 1 for number in range(3000)]
  seen, padded, shapes = [], 0, set()
  for length, rows, numbers in bucketing.split_by_length(sizes, 100, 1024, devices):
    assert len(numbers) <= rows and rows * length <= devices * 1024 and rows % devices == 0
    assert all(sizes[number] <= length for number in numbers)
    seen, padded, shapes = seen + numbers, padded + rows * length, shapes | {(length, rows)}
  assert sorted(seen) == list(range(3000))
  assert padded < {'cpu': 1.15, 'tpu': 1.25}[backend] * sum(sizes)
  assert len(shapes) <= {'cpu': 15, 'tpu': 7}[backend]


def test_few_rows_are_one_batch_of_the_longest_length():
  assert list(bucketing.split_by_length([5, 33, 20], 0, 2048)) == [(48, 4, [1, 2, 0])]
  assert list(bucketing.split_by_length([5, 33, 20], 0, 2048, steps=2)) == [(48, 3, [1, 2, 0])]
  assert list(bucketing.split_by_length([600], 0, 16)) == [(768, 1, [0])]


def test_pairs_of_tokens_limit_the_rows_of_long_texts():
  found = list(bucketing.split_by_length([128] * 4 + [32] * 8, 0, 1024, token_pairs=2 * 128 ** 2))
  assert [(length, rows) for length, rows, _ in found] == [(128, 2), (128, 2), (32, 8)]


def test_lengths_are_grouped():
  assert bucketing.group_by_length([3, 20, 60, 4], 0, 16) == {16: [0, 3], 24: [1], 64: [2]}
  assert bucketing.group_by_length([3, 20, 60, 4], 0, 4096) == {64: [2, 1, 0, 3]}
  assert bucketing.group_by_length([97], 100, 16) == {100: [0]}


@pytest.mark.parametrize(('backend', 'length'), [('cpu', 12), ('tpu', 16)])
def test_short_sentences_have_little_padding_on_a_cpu(monkeypatch, backend, length):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  assert {found for found, _, _ in bucketing.split_by_length([10] * 900, 128, 2048)} == {length}
  assert {found for found, _, _ in bucketing.split_by_length([10] * 800, 128, 2048)} == {16}
