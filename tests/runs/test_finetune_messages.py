"""Messages of a fine-tuning run before it starts."""
import dataclasses

import numpy as np
import pytest

from plm_jax.cli.flags import write_flags
from plm_jax.config.run import ConfigError, FinetuneRun, Phase, TrainConfig, check_lengths
from plm_jax.models import bert, neobert
from plm_jax.runs.finetune import describe_settings, describe_truncation
from plm_jax.tasks.extractive_qa import AnswerTask
from plm_jax.tasks.input_formats import collect_rows
from plm_jax.validation import with_paths

LEARNED = bert.base()
ROTARY = neobert.base()


@pytest.mark.parametrize(('model', 'start', 'length', 'remedy'), [
    (LEARNED, 'runs/a', 128, '--train.phases.0.length=256 reads more'),
    (LEARNED, 'runs/a', 512,
     'It has position embeddings for 512 tokens: one that is pre-trained with '
                             '--model.max-length=1024 reads more'),
    (LEARNED, '', 512, '--model.max-length=1024 --train.phases.0.length=1024 reads more'),
    (with_paths(ROTARY, {'max_length': 512}), 'runs/a', 512,
     '--model.max-length=1024 --train.phases.0.length=1024 reads more')])
def test_truncated_texts_are_reported_with_a_valid_option(model, start, length, remedy):
  """The suggested options are valid; impossible ones are not suggested."""
  config = FinetuneRun('x', model=model, warm_start=start,
                       train=TrainConfig(phases=(Phase(1, length, 8),)))
  features = dataclasses.replace(collect_rows([], {}, np.zeros(0, np.int32)), clipped=7, lost=5)
  told = describe_truncation(config, features)
  assert write_flags(told) == (
      f'7 examples do not fit {length} tokens and lose their end, 100.0% of all tokens. {remedy}; '
      '--objective.windows=mean reads all, in windows')
  longer = with_paths(config, {'train.phases': (Phase(1, 2 * length, 8),)})
  if '--model.max-length' in remedy and '--train' in remedy:
    longer = with_paths(longer, {'model.max_length': 2 * length})
  if 'pre-trained' in remedy:
    with pytest.raises(ConfigError, match=r'sequences of 1024 tokens .* one that is pre-trained'):
      check_lengths(longer)
  else:
    check_lengths(longer)


def test_questions_have_a_separate_maximum_length():
  config = FinetuneRun('x', objective=AnswerTask(question_length=64),
                       train=TrainConfig(phases=(Phase(1, 384, 8),)))
  told = describe_truncation(config, dataclasses.replace(
      collect_rows([], {}, np.zeros(0, np.int32)), clipped=2))
  assert write_flags(told) == (
      '2 questions lose what is behind 64 tokens. --objective.question-length=128 reads more')


@pytest.mark.parametrize(('model', 'scale', 'peak', 'expected'), [
    (bert.tiny(), 'laptop', 5e-4,
     '300 steps: for 2 layers of width 128; --scale=paper takes the published settings of '
                                  'larger models'),
    (bert.tiny(), 'paper', 3e-5,
     '300 steps, as published for larger models; 2 layers of width 128 may need '
                                 '--optim.peak=5e-04'),
    (bert.base(), 'paper', 2e-5, '300 steps, for 12 layers of width 768')])
def test_a_run_describes_its_settings(model, scale, peak, expected):
  config = FinetuneRun('x', model=model, warm_start='runs/a', scale=scale)
  config = with_paths(config, {'optim.peak': peak, 'train.phases': (Phase(300, 64, 8),)})
  assert write_flags(describe_settings(
      config)) == f'learning rate {peak:g}, batch size 8, {expected}'
