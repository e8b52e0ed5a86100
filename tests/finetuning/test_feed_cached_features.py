"""A frozen backbone computes each example once."""
import dataclasses

import jax
import numpy as np
import pytest

from plm_jax import tokenizers, validation
from plm_jax.config.run import FinetuneRun, Phase, TrainConfig
from plm_jax.finetuning.feed import LabeledFeed, backbone_frozen
from plm_jax.finetuning.setup import resolve_run
from plm_jax.models import bert, eurobert, modernbert, t5
from plm_jax.optim.optimizers import AdamW
from plm_jax.optim.tuning import TuningConfig
from plm_jax.tasks.labeled_data import LabeledConfig
from plm_jax.tasks.sequence_classification import SequenceTask
from plm_jax.tasks.token_classification import TaggingTask
from plm_jax.training.train import train

TEXTS = [('the cat sat down here', 'good'), ('dogs bark at night', 'bad'),
         ('a cat is a cat', 'good'),
         ('no dogs here', 'bad'), ('it purrs', 'good')]
WORDS = 'the O\ncat B-PET\nsat O\n\ndogs B-PET\nbark O\n\na O\ncat B-PET\n'


def run(tmp_path, task, source, name, pooling='first', **data):
  tokenizer = tokenizers.train_wordpiece(iter([text for text, _ in TEXTS]), 60)
  model = validation.with_paths(bert.make_config(2, 64), {
      'vocab': tokenizer.vocab.size, 'max_length': 16, 'block.heads': 2, 'block.dropout': 0.0,
      'head.pooling': pooling,
      'block.attention.dropout': 0.0})
  config = FinetuneRun(
      name, model=model, objective=task, output=str(tmp_path / name), tuning=TuningConfig(top=0),
      data=LabeledConfig(train=(str(source),), dev=(str(source),), epochs=2, **data),
      optim=AdamW(peak=0.05, warmup=0), train=TrainConfig(phases=(Phase(1, 16, 2),)))
  ready = resolve_run(config, tokenizer)
  return train(ready.config, ready.open_feed, tokenizer)


@pytest.mark.parametrize(('family', 'path', 'pooling', 'kept'), [
    ('modernbert', 'head.pooling', 'first', True), ('modernbert', 'head.pooling', 'mean', True),
    ('eurobert', 'head.pooling', 'late', False)])
def test_features_are_kept_only_for_heads_that_read_no_others(family, path, pooling, kept):
  """A head with a prediction per token reads all of them, and heads of T5 read the outputs of the
  encoder or the decoder."""
  make = {'modernbert': modernbert.base, 'eurobert': eurobert.eurobert_210m}[family]
  model = validation.with_paths(make(), {path: pooling})
  config = FinetuneRun('try', family=family, model=model, tuning=TuningConfig(top=0))
  for task, wanted in ((SequenceTask(family=family), kept), (TaggingTask(family=family), True)):
    assert backbone_frozen(dataclasses.replace(config, objective=task)) == wanted
  encoder_decoder = dataclasses.replace(config, family='t5', model=t5.small())
  for task, wanted in ((SequenceTask(family='t5'), True), (TaggingTask(family='t5'), False)):
    assert backbone_frozen(dataclasses.replace(encoder_decoder, objective=task)) == wanted


@pytest.mark.slow
def test_a_finished_run_encodes_no_training_examples(tmp_path, monkeypatch):
  """No training example is encoded; only the development set is predicted again."""
  source = tmp_path / 'texts.tsv'
  source.write_text('text\tlabel\n' + ''.join(f'{text}\t{label}\n' for text, label in TEXTS))
  first = run(tmp_path, SequenceTask(), source, 'run')
  monkeypatch.setattr(LabeledFeed, 'on_start', None)
  assert run(tmp_path, SequenceTask(), source, 'run').heldout == first.heldout


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'pooling'),
                         [('label', 'first'), ('label', 'mean'), ('label', 'max'),
                          ('tags', 'first')])
def test_cached_features_give_the_same_training(kind, pooling, tmp_path):
  if kind == 'label':
    source, task = tmp_path / 'texts.tsv', SequenceTask()
    source.write_text('text\tlabel\n' + ''.join(f'{text}\t{label}\n' for text, label in TEXTS))
  else:
    source, task = tmp_path / 'words.conll', TaggingTask()
    source.write_text(WORDS)
  kept, asked = (run(tmp_path, task, source, f'{kind}{cache}', pooling, cache=cache)
                 for cache in (True, False))
  for ours, theirs in zip(jax.tree.leaves(kept.params), jax.tree.leaves(asked.params), strict=True):
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert kept.heldout == pytest.approx(asked.heldout, abs=1e-4)
  head = kept.params[f'heads_{kind}']['dense']['kernel']
  assert np.abs(head).max() > 0.06  # it has learned: it began within 0.04
