import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from plm_jax import recipes
from plm_jax.architectures.encoder import EncoderConfig
from plm_jax.config.run import ConfigError, DataConfig, PretrainRun, check
from plm_jax.layers.embeddings import EmbeddingConfig
from plm_jax.objectives import corruption
from plm_jax.objectives.mlm import MaskedLM
from plm_jax.objectives.row_builders import FullSentences
from plm_jax.objectives.rtd import ReplacedTokenDetection
from plm_jax.objectives.translation_rows import Translations

BIG = tiny.Vocab(size=100, pad=0, unk=1, cls=2, sep=3, mask=4)
PAIRS = Translations(languages=('de', 'de-en'), swapped=0.0)
# As records have them: of each pair the text of column B, en, and then that of A. 10 and 20, 30 are
# of A; 5 .. 7 of B.
WINDOWS = {
    'tokens': [[5, 6, 10, 7, 20, 30, 0, 0], [5, 6, 7, 8, 9, 0, 0, 0], [5, 6, 7, 8, 9, 10, 11, 12],
               [0] * 8],
    'sentences': [[1, 1, 2, 3, 4, 4, 0, 0], [1, 1, 2, 2, 3, 0, 0, 0], [1] * 8, [0] * 8],
    'segments': [[1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 2, 0, 0, 0], [1] * 8, [0] * 8],
    'words': [[1, 1, 2, 3, 4, 5, 0, 0], [1, 2, 3, 4, 5, 0, 0, 0], [*range(1, 9)], [0] * 8],
    'corpus': [1, 0, 1, 1], 'index': [0, 1, 2, 3], 'epoch': [0] * 4, 'document': [0] * 4}


def windows():
  return {name: jnp.array(values, jnp.int32) for name, values in WINDOWS.items()}


def arrange(pair, key=0):
  keys = corruption.example_keys(jax.random.key(key), windows())
  return jax.device_get(jax.jit(lambda w: pair.arrange(keys, w, BIG))(windows()))


def test_two_pairs_a_row_of_running_text_and_half_a_pair_literal():
  """Lample and Conneau 2019, figure 1; facebookresearch/XLM, utils.py, concat_batches: four ends,
  positions from 0."""
  found = {name: values.tolist() for name, values in arrange(PAIRS).items()}
  assert found == {
      'tokens': [[2, 10, 3, 2, 5, 6, 3, 2, 20, 30], [2, 5, 6, 7, 8, 3, 9, 3, 0, 0],
                 [2, 5, 6, 7, 8, 9, 10, 3, 0, 0],
                 [0] * 10],
      'segments': [[1] * 7 + [2] * 3, [1] * 8 + [0] * 2, [1] * 8 + [0] * 2, [0] * 10],
      'types': [[0] * 10] * 4,
      'words': [[0, 2, 0, 0, 1, 1, 0, 0, 4, 5], [0, 1, 2, 3, 4, 0, 5, 0, 0, 0],
                [0, *range(1, 7), 0, 0, 0], [0] * 10],
      'place': [[0, 1, 2, 0, 1, 2, 3, 0, 1, 2], [*range(10)], [*range(8), 0, 0], [0] * 10],
      'languages': [[0, 0, 0, 1, 1, 1, 1, 0, 0, 0], [0] * 10, [1] * 8 + [0] * 2, [0] * 10]}
  # The first window is larger than 'pairs' would cut it: what of its last text has no room is left
  # out, and no more. The third is half of a pair that is too long: it is cut so that four special
  # tokens have room.
  assert PAIRS.text_length(10) == 8


@pytest.mark.release
@pytest.mark.slow
def test_either_text_comes_first_half_of_the_time():
  swapped = arrange(dataclasses.replace(PAIRS, swapped=1.0))
  assert swapped['tokens'][0].tolist() == [2, 5, 6, 3, 2, 10, 3, 2, 7, 3]
  assert swapped['languages'][0].tolist() == [1, 1, 1, 1, 0, 0, 0, 1, 1, 1]
  rows = [arrange(Translations(PAIRS.languages), key)['tokens'][0] for key in range(24)]
  orders = [(row[1] == 10, 20 in row[7:10]) for row in rows]
  assert {*orders} == {(True, True), (True, False), (False, True), (False, False)}


def test_running_text_is_that_of_full_sentences():
  alone = dataclasses.replace(PAIRS, languages=('de', 'en'))
  found, usual = arrange(alone), jax.device_get(FullSentences().arrange(None, windows(), BIG))
  for name, values in usual.items():
    np.testing.assert_array_equal(found[name], values)
  assert found['languages'].tolist() == [[1] * 10, [0] * 10, [1] * 10, [1] * 10]


@pytest.mark.release
@pytest.mark.slow
def test_masks_are_in_both_texts_and_languages_are_said_where_asked():
  objective = MaskedLM(pair=PAIRS, mask_rate=0.5, language_ids=True)
  found = [jax.device_get(jax.jit(lambda key: objective.corrupt(key, windows(), BIG))(
      jax.random.key(key)))
           for key in range(8)]
  places = {int(place) for batch in found
            for place, weight in zip(batch['positions'][0], batch['weights'][0], strict=True)
            if weight}
  assert places == {1, 4, 5, 8, 9}
  assert (found[0]['languages'] == arrange(PAIRS)['languages']).all()
  plain = dataclasses.replace(objective, language_ids=False)
  assert 'languages' not in jax.eval_shape(lambda key: plain.corrupt(key, windows(), BIG),
                                           jax.random.key(0))


@pytest.mark.slow
def test_pairs_of_a_row_do_not_see_each_other():
  """The hidden states of a pair are the same whatever is in the other one, and its own half is
  seen."""
  model = EncoderConfig(vocab=100, block=tiny.block(dropout=0.0, attention={'dropout': 0.0}),
                        max_length=10,
                        embeddings=EmbeddingConfig(types=0, languages=2),
                        stack=tiny.StackConfig(layers=1)).backbone(packed=True)
  batch = arrange(PAIRS)
  batch = {name: batch[name][:1] for name in ('tokens', 'segments', 'place', 'languages')}
  params = model.init(jax.random.key(0), batch)
  def hidden(tokens):
    return model.apply(params, {**batch, 'tokens': tokens}).hidden[0]
  usual = hidden(batch['tokens'])
  other, own = batch['tokens'].copy(), batch['tokens'].copy()
  other[0, 8], own[0, 4] = 40, 40
  np.testing.assert_array_equal(hidden(other)[:7], usual[:7])
  assert np.abs(hidden(own)[1] - usual[1]).max() > 1e-3


def test_who_has_no_language_or_no_place_for_it_is_refused():
  run = PretrainRun(
    'xlm',
    model=EncoderConfig(embeddings=EmbeddingConfig(languages=2, types=0)),
    objective=MaskedLM(pair=PAIRS, language_ids=True),
    data=DataConfig(path=('de.txt', 'task:columns-de-en:pairs.tsv'), assembly='sentences'),
  )
  check(run)
  assert [run.rule(run.train.phases[0], corpus).assembly
          for corpus in (0, 1)] == ['sentences', 'pairs']
  assert run.rules() == run.rules(0) + run.rules(1)
  for changes, message in (
      (dict(data=DataConfig(assembly='sentences')), 'for 1 corpora: one each'),
      (dict(model=EncoderConfig(embeddings=EmbeddingConfig(languages=1))),
       '2 corpora of 2 languages, and model.embeddings.languages is 1'),
      (dict(model=EncoderConfig(embeddings=EmbeddingConfig(languages=2), padding=1)),
       'give model.padding -1'),
      (dict(data=DataConfig(path=('task:columns-a-b:x', 'y'), assembly='sentences')),
       'for it: give A-B')):
    with pytest.raises(ConfigError, match=message):
      check(dataclasses.replace(run, **changes))
  for names in ((), ('de-en-fr',), ('de-',), ('de-de',)):
    with pytest.raises(ConfigError, match='languages'):
      Translations(languages=names)
  assert ReplacedTokenDetection(mlm=MaskedLM(pair=PAIRS)).layout.has_text_pairs(1)


def test_the_recipe_takes_any_corpora():
  run = recipes.find_recipe('xlm_xnli15_tlm')('test')
  check(run)
  assert run.objective.pair == Translations() and run.model.embeddings.languages == 15
  assert not run.objective.layout.has_text_pairs(0)
